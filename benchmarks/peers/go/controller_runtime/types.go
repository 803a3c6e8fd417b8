package main

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var groupVersion = schema.GroupVersion{Group: "bench.declctl.dev", Version: "v1"}

// Custom is the custom resource of the server. Its deep copies are those that controller-gen would generate.
type Custom struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              CustomSpec   `json:"spec"`
	Status            CustomStatus `json:"status,omitempty"`
}

// CustomSpec is what the user wants.
type CustomSpec struct {
	Replicas int32    `json:"replicas"`
	Paused   bool     `json:"paused"`
	NodeName string   `json:"nodeName"`
	Weight   float64  `json:"weight"`
	Storage  Storage  `json:"storage"`
	Members  []Member `json:"members"`
}

// Storage is that of every member.
type Storage struct {
	Class string `json:"class"`
	Size  string `json:"size"`
}

// Member is one of a set.
type Member struct {
	Name       string     `json:"name"`
	Address    string     `json:"address"`
	Image      string     `json:"image"`
	Parameters Parameters `json:"parameters"`
}

// Parameters are those of a member.
type Parameters struct {
	Seed    int64  `json:"seed"`
	Comment string `json:"comment"`
}

// CustomStatus is what the controller writes.
type CustomStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Seen               string             `json:"seen,omitempty"`
	Phase              string             `json:"phase,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// CustomList is a list of them.
type CustomList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Custom `json:"items"`
}

// DeepCopyInto copies all of it.
func (in *Custom) DeepCopyInto(out *Custom) {
	*out = *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Members = slices.Clone(in.Spec.Members)
	out.Status.Conditions = nil
	if in.Status.Conditions != nil {
		out.Status.Conditions = make([]metav1.Condition, len(in.Status.Conditions))
		for at := range in.Status.Conditions {
			in.Status.Conditions[at].DeepCopyInto(&out.Status.Conditions[at])
		}
	}
}

// DeepCopy is a copy that shares nothing.
func (in *Custom) DeepCopy() *Custom {
	out := new(Custom)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject is what the cache calls for each read.
func (in *Custom) DeepCopyObject() runtime.Object { return in.DeepCopy() }

// DeepCopyObject copies each item.
func (in *CustomList) DeepCopyObject() runtime.Object {
	out := &CustomList{TypeMeta: in.TypeMeta, Items: make([]Custom, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for at := range in.Items {
		in.Items[at].DeepCopyInto(&out.Items[at])
	}
	return out
}
