package main

import (
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sentAnnotation says when an object was changed last, in nanoseconds since 1970.
const sentAnnotation = "bench/sent"

// identity is what a list is sorted by.
type identity struct{ namespace, name string }

// key is where etcd would keep the object: lists are in this order.
func (id identity) key() string { return id.namespace + "/" + id.name }

// meta has the holes that are filled when an object is sent.
func (id identity) meta(c chance) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: id.name, Namespace: id.namespace, UID: c.uid(), CreationTimestamp: c.moment(), ResourceVersion: versionHole,
		Annotations: map[string]string{sentAnnotation: sentHole},
	}
}

// kind is a resource that can be served: all objects of it are made by numbers.
type kind struct {
	group, version, resource, name, singular string
	// typed are compiled into the API server: protobuf, the field order of Go, no kind in the items of a list.
	typed    bool
	identify func(number int, c chance) identity
	make     func(id identity, number int, c chance) any
	// status is whether it has the subresource.
	status bool
	// empty is what a bookmark carries.
	empty func(meta metav1.ObjectMeta) any
}

// object makes one by its number.
func (k *kind) object(seed uint64, number int) any {
	c := chanceOf(seed, number)
	return k.make(k.identify(number, c), number, c)
}

func (k *kind) apiVersion() string {
	return strings.TrimPrefix(k.group+"/"+k.version, "/")
}

// typeMeta is what the API server writes before a typed object in a watch event.
func (k *kind) typeMeta() metav1.TypeMeta {
	if !k.typed {
		return metav1.TypeMeta{}
	}
	return metav1.TypeMeta{Kind: k.name, APIVersion: k.apiVersion()}
}

// path is that of the collection.
func (k *kind) path() string {
	if k.group == "" {
		return "/api/" + k.version + "/" + k.resource
	}
	return "/apis/" + k.group + "/" + k.version + "/" + k.resource
}

// statusPath is that of the status of one object, as a pattern.
func (k *kind) statusPath() string {
	collection := k.path()
	return strings.TrimSuffix(collection, k.resource) + "namespaces/{namespace}/" + k.resource + "/{name}/status"
}

var kinds = map[string]*kind{
	"pods": {
		version: "v1", resource: "pods", singular: "pod", name: "Pod", typed: true,
		identify: podIdentity, make: pod,
		empty: func(meta metav1.ObjectMeta) any { return &corev1.Pod{ObjectMeta: meta} },
	},
	"configmaps": {
		version: "v1", resource: "configmaps", singular: "configmap", name: "ConfigMap", typed: true,
		identify: named("settings"), make: configMap,
		empty: func(meta metav1.ObjectMeta) any { return &corev1.ConfigMap{ObjectMeta: meta} },
	},
	"secrets": {
		version: "v1", resource: "secrets", singular: "secret", name: "Secret", typed: true,
		identify: named("credentials"), make: secret,
		empty: func(meta metav1.ObjectMeta) any { return &corev1.Secret{ObjectMeta: meta} },
	},
	"leases": {
		group: "coordination.k8s.io", version: "v1", resource: "leases", singular: "lease", name: "Lease", typed: true,
		identify: named("node"), make: lease,
		empty: func(meta metav1.ObjectMeta) any { return &coordinationv1.Lease{ObjectMeta: meta} },
	},
	"customs": {
		group: "bench.declctl.dev", version: "v1", resource: "customs", singular: "custom", name: "Custom",
		status: true, identify: named("custom"), make: custom, empty: emptyCustom,
	},
}

func named(stem string) func(int, chance) identity {
	return func(number int, c chance) identity {
		return identity{fmt.Sprintf("team-%d", number%namespaces), fmt.Sprintf("%s-%s-%d", stem, c.hex(8), number)}
	}
}

// lease is that of a node: about 400 bytes.
func lease(id identity, number int, c chance) any {
	holder, seconds, renewed := fmt.Sprintf("node-%d", number), int32(40), metav1.NewMicroTime(c.moment().Add(time.Millisecond))
	meta := id.meta(c)
	meta.Labels = map[string]string{corev1.LabelHostname: holder}
	return &coordinationv1.Lease{
		ObjectMeta: meta,
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
	}
}
