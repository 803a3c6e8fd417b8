package main

import (
	"encoding/pem"
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// configMap has 1 to 100 KB of files; small ones are as frequent as large ones are heavy.
func configMap(id identity, _ int, c chance) any {
	meta := id.meta(c)
	meta.Labels = map[string]string{"app": fmt.Sprintf("app-%d", c.IntN(deployments)), "team": id.namespace}
	meta.ManagedFields = []metav1.ManagedFieldsEntry{
		managed("kubectl-client-side-apply", "", meta.CreationTimestamp, `{"f:data":{},"f:metadata":{"f:labels":{".":{},"f:app":{}}}}`),
	}
	left := int(1000 * math.Pow(95, c.Float64()))
	data := map[string]string{}
	for files := 1 + c.IntN(4); files > 0; files-- {
		data[fmt.Sprintf("%s-%d.conf", c.pick(vocabulary[:10]...), files)] = c.words(left / files)
		left -= left / files
	}
	return &corev1.ConfigMap{ObjectMeta: meta, Data: data}
}

// secret is a certificate with its key, or a token: 1 to 5 KB that no one compresses well.
func secret(id identity, _ int, c chance) any {
	meta := id.meta(c)
	meta.Labels = map[string]string{"app": fmt.Sprintf("app-%d", c.IntN(deployments))}
	meta.ManagedFields = []metav1.ManagedFieldsEntry{
		managed("cert-manager", "", meta.CreationTimestamp, `{"f:data":{".":{},"f:tls.crt":{},"f:tls.key":{}},"f:type":{}}`),
	}
	if c.IntN(3) == 0 {
		return &corev1.Secret{
			ObjectMeta: meta, Type: corev1.SecretTypeOpaque, Data: map[string][]byte{"token": []byte(c.hex(200 + c.IntN(400)))},
		}
	}
	return &corev1.Secret{ObjectMeta: meta, Type: corev1.SecretTypeTLS, Data: map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.bytes(700 + c.IntN(900))}),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: c.bytes(121 + c.IntN(1000))}),
	}}
}

// custom is a custom resource with a nested spec, numbers, conditions and a status, as operators write them: about 2 KB.
func custom(id identity, number int, c chance) any {
	created, generation := c.moment().UTC().Format("2006-01-02T15:04:05Z"), 1+c.IntN(9)
	return map[string]any{
		"apiVersion": "bench.declctl.dev/v1",
		"kind":       "Custom",
		"metadata": map[string]any{
			"name": id.name, "namespace": id.namespace, "uid": string(c.uid()), "creationTimestamp": created,
			"resourceVersion": versionHole, "generation": generation,
			"labels":      map[string]any{"app": fmt.Sprintf("app-%d", number%deployments), "tier": c.pick("web", "work")},
			"annotations": map[string]any{sentAnnotation: sentHole, "bench/checksum": c.hex(64)},
			"managedFields": []any{map[string]any{
				"apiVersion": "bench.declctl.dev/v1", "fieldsType": "FieldsV1", "manager": "operator", "operation": "Update", "time": created,
				"fieldsV1": map[string]any{"f:spec": map[string]any{"f:members": map[string]any{}, "f:storage": map[string]any{}}},
			}},
		},
		"spec": map[string]any{
			"replicas": c.IntN(10), "paused": c.IntN(20) == 0, "nodeName": fmt.Sprintf("node-%d", c.IntN(nodes)),
			"weight":  math.Round(c.Float64()*1000) / 1000,
			"storage": map[string]any{"class": c.pick("fast", "slow"), "size": fmt.Sprintf("%dGi", 1+c.IntN(500))},
			"members": members(c),
		},
		"status": map[string]any{
			"observedGeneration": generation, "seen": seenHole, "phase": c.pick("Ready", "Ready", "Updating"),
			"conditions": []any{condition("Available", c), condition("Progressing", c)},
		},
	}
}

func members(c chance) []any {
	made := []any{}
	for member := range 2 + c.IntN(5) {
		made = append(made, map[string]any{
			"name": fmt.Sprintf("member-%d", member), "address": c.address(), "image": "registry.example/member@sha256:" + c.hex(64),
			"parameters": map[string]any{"seed": c.IntN(1 << 30), "comment": c.words(40)},
		})
	}
	return made
}

func condition(name string, c chance) map[string]any {
	return map[string]any{
		"type": name, "status": "True", "reason": c.pick("AsExpected", "MinimumReplicas"), "message": c.words(30),
		"lastTransitionTime": c.moment().UTC().Format("2006-01-02T15:04:05Z"),
	}
}

func emptyCustom(meta metav1.ObjectMeta) any {
	written := map[string]any{"resourceVersion": meta.ResourceVersion, "creationTimestamp": nil}
	if len(meta.Annotations) > 0 {
		written["annotations"] = meta.Annotations
	}
	return map[string]any{"apiVersion": "bench.declctl.dev/v1", "kind": "Custom", "metadata": written}
}
