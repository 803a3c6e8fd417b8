package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// Everything below compares with what apimachinery writes: that is what an API server writes.

func scheme(t *testing.T) *runtime.Scheme {
	made := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(made); err != nil {
			t.Fatal(err)
		}
	}
	metav1.AddToGroupVersion(made, corev1.SchemeGroupVersion)
	return made
}

// encoders are what an API server would use for objects and lists, and for watch events.
func encoders(t *testing.T, of format) (objects, events runtime.Encoder) {
	if _, ok := of.(protobufFormat); ok {
		made := scheme(t)
		return protobuf.NewSerializer(made, made), protobuf.NewRawSerializer(made, made)
	}
	made := scheme(t)
	options := jsonserializer.SerializerOptions{StreamingCollectionsEncoding: true}
	encoder := jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, made, made, options)
	return encoder, encoder
}

func formatsOf(kind *kind) map[string]format {
	if kind.typed {
		return map[string]format{"json": jsonFormat{kind}, "protobuf": protobufFormat{kind}}
	}
	return map[string]format{"json": jsonFormat{kind}}
}

func everyFormat(t *testing.T, check func(t *testing.T, kind *kind, format format)) {
	for name, kind := range kinds {
		for encoding, format := range formatsOf(kind) {
			t.Run(name+" "+encoding, func(t *testing.T) { check(t, kind, format) })
		}
	}
}

const testSeed = 7

func prepareSome(t *testing.T, kind *kind, format format, count int) *prepared {
	made, err := prepare(format, count, func(at int) any { return kind.object(testSeed, at) })
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// object is what the prepared bytes must say, as an API server has it.
func object(t *testing.T, kind *kind, number int, state change) runtime.Object {
	made := kind.object(testSeed, number)
	if !kind.typed {
		made = &unstructured.Unstructured{Object: decoded(t, made)}
	}
	accessor, err := meta.Accessor(made)
	if err != nil {
		t.Fatal(err)
	}
	accessor.SetResourceVersion(written(state.version))
	annotations := accessor.GetAnnotations()
	annotations[sentAnnotation] = fmt.Sprintf("%019d", state.sent)
	accessor.SetAnnotations(annotations)
	if custom, ok := made.(*unstructured.Unstructured); ok {
		if err := unstructured.SetNestedField(custom.Object, fmt.Sprintf("%019d", state.seen), "status", "seen"); err != nil {
			t.Fatal(err)
		}
	}
	return made.(runtime.Object)
}

func decoded(t *testing.T, what any) map[string]any {
	encoded, err := json.Marshal(what)
	if err != nil {
		t.Fatal(err)
	}
	var read map[string]any
	if err := json.Unmarshal(encoded, &read); err != nil {
		t.Fatal(err)
	}
	return read
}

// withKind gives a typed object its kind, as the API server does before it encodes one that isn't in a list.
func withKind(kind *kind, made runtime.Object) runtime.Object {
	if kind.typed {
		made.GetObjectKind().SetGroupVersionKind(schemaOf(kind, kind.name))
	}
	return made
}

func schemaOf(kind *kind, name string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: kind.group, Version: kind.version, Kind: name}
}

func TestAWatchEventIsWhatTheAPIServerWrites(t *testing.T) {
	everyFormat(t, func(t *testing.T, kind *kind, format format) {
		objects, events := encoders(t, format)
		prepared := prepareSome(t, kind, format, 3)
		state := change{firstVersion + 4711, 1795281027757365553, 1795281027757365444}
		var encoded, event bytes.Buffer
		if err := objects.Encode(withKind(kind, object(t, kind, 2, state)), &encoded); err != nil {
			t.Fatal(err)
		}
		if err := events.Encode(&metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: encoded.Bytes()}}, &event); err != nil {
			t.Fatal(err)
		}
		got := format.eventBegin(nil, "MODIFIED", kind.typeMeta(), prepared.size(2))
		got = format.eventEnd(prepared.append(got, 2, state))
		if strings.HasSuffix(format.streamType(), streamed) {
			var framed bytes.Buffer
			if _, err := protobuf.LengthDelimitedFramer.NewFrameWriter(&framed).Write(event.Bytes()); err != nil {
				t.Fatal(err)
			}
			event = framed
		}
		same(t, got, event.Bytes())
	})
}

func TestAListIsWhatTheAPIServerWrites(t *testing.T) {
	remaining := int64(70)
	whole, page := metav1.ListMeta{ResourceVersion: "1000000200"}, metav1.ListMeta{ResourceVersion: "1000000200", Continue: "MTA", RemainingItemCount: &remaining}
	everyFormat(t, func(t *testing.T, kind *kind, format format) {
		for _, said := range []metav1.ListMeta{whole, page} {
			for _, count := range []int{0, 1, 130} {
				encoder, _ := encoders(t, format)
				var want bytes.Buffer
				if err := encoder.Encode(list(t, kind, said, count), &want); err != nil {
					t.Fatal(err)
				}
				same(t, listed(prepareSome(t, kind, format, count), said, count), want.Bytes())
			}
		}
	})
}

// listed is a list of prepared objects, as the server puts it together.
func listed(prepared *prepared, said metav1.ListMeta, count int) []byte {
	size := 0
	for at := range count {
		size += prepared.format.listed(prepared.size(at))
	}
	got := prepared.format.listBegin(nil, said, size)
	for at := range count {
		got = prepared.format.listItem(got, prepared.size(at), at == 0)
		got = prepared.append(got, at, change{firstVersion + uint64(at), int64(at), 0})
	}
	return prepared.format.listEnd(got, said)
}

// list is the same list as an API server has it.
func list(t *testing.T, kind *kind, said metav1.ListMeta, count int) runtime.Object {
	items := make([]runtime.Object, count)
	for at := range items {
		items[at] = object(t, kind, at, change{firstVersion + uint64(at), int64(at), 0})
	}
	made := map[string]func() runtime.Object{
		"Pod": func() runtime.Object { return &corev1.PodList{} }, "ConfigMap": func() runtime.Object { return &corev1.ConfigMapList{} },
		"Secret": func() runtime.Object { return &corev1.SecretList{} }, "Lease": func() runtime.Object { return &coordinationv1.LeaseList{} },
		"Custom": func() runtime.Object { return &unstructured.UnstructuredList{Object: map[string]any{}} },
	}[kind.name]()
	if err := meta.SetList(made, items); err != nil {
		t.Fatal(err)
	}
	accessor, err := meta.ListAccessor(made)
	if err != nil {
		t.Fatal(err)
	}
	accessor.SetResourceVersion(said.ResourceVersion)
	accessor.SetContinue(said.Continue)
	accessor.SetRemainingItemCount(said.RemainingItemCount)
	made.GetObjectKind().SetGroupVersionKind(schemaOf(kind, kind.name+"List"))
	return made
}

func TestObjectsAreVariedAndOfTheirSize(t *testing.T) {
	sizes := map[string][2]int{"pods": {4000, 5000}, "configmaps": {1000, 110_000}, "secrets": {500, 6000}, "leases": {300, 500}, "customs": {1000, 4000}}
	for name, kind := range kinds {
		prepared := prepareSome(t, kind, jsonFormat{kind}, 300)
		seen := map[string]bool{}
		for at := range 300 {
			if size := prepared.size(at); size < sizes[name][0] || size > sizes[name][1] {
				t.Errorf("%s: one has %d bytes", name, size)
			}
			seen[string(prepared.append(nil, at, change{}))] = true
		}
		if len(seen) != 300 {
			t.Errorf("%s: only %d of 300 differ", name, len(seen))
		}
	}
}

func same(t *testing.T, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	from := max(0, at-60)
	t.Fatalf("differs at %d of %d and %d:\n got %q\nwant %q", at, len(got), len(want), got[from:min(len(got), at+60)], want[from:min(len(want), at+60)])
}
