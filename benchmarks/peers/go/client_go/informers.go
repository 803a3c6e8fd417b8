package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// index is the name of the one index: by node for pods, by namespace for the others.
const index = "by"

var resources = map[string]schema.GroupVersionResource{
	"pods":       {Version: "v1", Resource: "pods"},
	"configmaps": {Version: "v1", Resource: "configmaps"},
	"secrets":    {Version: "v1", Resource: "secrets"},
	"leases":     {Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
	"customs":    {Group: "bench.declctl.dev", Version: "v1", Resource: "customs"},
}

// informerOf makes the informer with its index, not started.
func informerOf(kubeconfig, kind, mode string) (cache.SharedIndexInformer, error) {
	resource, known := resources[kind]
	if !known {
		return nil, fmt.Errorf("no such kind: %q", kind)
	}
	settings, err := config(kubeconfig, mode)
	if err != nil {
		return nil, err
	}
	var informer cache.SharedIndexInformer
	switch mode {
	case "typed-protobuf", "typed-json":
		client, err := kubernetes.NewForConfig(settings)
		if err != nil {
			return nil, err
		}
		generic, err := informers.NewSharedInformerFactory(client, 0).ForResource(resource)
		if err != nil {
			return nil, err
		}
		informer = generic.Informer()
	case "dynamic":
		client, err := dynamic.NewForConfig(settings)
		if err != nil {
			return nil, err
		}
		informer = dynamicinformer.NewDynamicSharedInformerFactory(client, 0).ForResource(resource).Informer()
	default:
		return nil, fmt.Errorf("no such mode: %q", mode)
	}
	indexer := cache.MetaNamespaceIndexFunc
	if kind == "pods" {
		indexer = byNode
	}
	return informer, informer.AddIndexers(cache.Indexers{index: indexer})
}

func byNode(object any) ([]string, error) {
	switch pod := object.(type) {
	case *corev1.Pod:
		return []string{pod.Spec.NodeName}, nil
	case *unstructured.Unstructured:
		node, _, err := unstructured.NestedString(pod.Object, "spec", "nodeName")
		return []string{node}, err
	default:
		return nil, fmt.Errorf("%T is no pod", object)
	}
}
