package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A format puts objects on the wire as kube-apiserver does it, byte for byte. What it appends around an object depends on
// nothing but the object's size, so that the object itself can be copied as it was prepared.
type format interface {
	// mediaType is that of lists, streamType that of watches.
	mediaType() string
	streamType() string
	// encode makes the bytes of an object, without kind and apiVersion where the format says them before.
	encode(object any) ([]byte, error)
	// listed is how many bytes an object of this size takes in a list.
	listed(size int) int
	listBegin(buffer []byte, meta metav1.ListMeta, listed int) []byte
	listItem(buffer []byte, size int, first bool) []byte
	listEnd(buffer []byte, meta metav1.ListMeta) []byte
	eventBegin(buffer []byte, event string, meta metav1.TypeMeta, size int) []byte
	eventEnd(buffer []byte) []byte
}

// jsonFormat keeps objects without their first brace: so an event can say kind and apiVersion in front of them.
type jsonFormat struct{ kind *kind }

func (jsonFormat) mediaType() string  { return runtime.ContentTypeJSON }
func (jsonFormat) streamType() string { return runtime.ContentTypeJSON }

func (jsonFormat) encode(object any) ([]byte, error) {
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return encoded[1:], nil
}

// listed is without the comma: nothing depends on the size of a list.
func (jsonFormat) listed(size int) int { return 1 + size }

func (f jsonFormat) listBegin(buffer []byte, meta metav1.ListMeta, _ int) []byte {
	if !f.kind.typed {
		return fmt.Appendf(buffer, `{"apiVersion":%q,"items":[`, f.kind.apiVersion())
	}
	encoded, err := json.Marshal(meta)
	if err != nil {
		panic(err)
	}
	return fmt.Appendf(buffer, `{"kind":"%sList","apiVersion":%q,"metadata":%s,"items":[`, f.kind.name, f.kind.apiVersion(), encoded)
}

func (jsonFormat) listItem(buffer []byte, _ int, first bool) []byte {
	if first {
		return append(buffer, '{')
	}
	return append(buffer, ',', '{')
}

// listEnd is where custom resources say the version of the list: their keys are in alphabetical order.
func (f jsonFormat) listEnd(buffer []byte, meta metav1.ListMeta) []byte {
	if f.kind.typed {
		return append(buffer, "]}\n"...)
	}
	said := map[string]any{"continue": meta.Continue, "resourceVersion": meta.ResourceVersion}
	if meta.RemainingItemCount != nil {
		said["remainingItemCount"] = *meta.RemainingItemCount
	}
	encoded, err := json.Marshal(said)
	if err != nil {
		panic(err)
	}
	return fmt.Appendf(buffer, `],"kind":"%sList","metadata":%s}`+"\n", f.kind.name, encoded)
}

func (jsonFormat) eventBegin(buffer []byte, event string, meta metav1.TypeMeta, _ int) []byte {
	buffer = append(append(append(buffer, `{"type":"`...), event...), `","object":{`...)
	if meta.Kind == "" {
		return buffer
	}
	buffer = append(append(append(buffer, `"kind":"`...), meta.Kind...), `","apiVersion":"`...)
	return append(append(buffer, meta.APIVersion...), `",`...)
}

func (jsonFormat) eventEnd(buffer []byte) []byte { return append(buffer, "}\n"...) }

// protobufFormat keeps objects as they are in the items of a list.
type protobufFormat struct{ kind *kind }

const (
	protobufMagic = "k8s\x00"
	streamed      = ";stream=watch"
	// Tags of the fields 1 and 2, both of a length and bytes.
	first, second = 0x0a, 0x12
)

// unknownEnd is what runtime.Unknown says of the encoding of its bytes: nothing.
var unknownEnd = []byte{0x1a, 0, 0x22, 0}

func (protobufFormat) mediaType() string  { return runtime.ContentTypeProtobuf }
func (protobufFormat) streamType() string { return runtime.ContentTypeProtobuf + streamed }

func (protobufFormat) encode(object any) ([]byte, error) {
	message, ok := object.(interface{ Marshal() ([]byte, error) })
	if !ok {
		return nil, fmt.Errorf("%T has no protobuf", object)
	}
	return message.Marshal()
}

func (protobufFormat) listed(size int) int { return field(size) }

func (f protobufFormat) listBegin(buffer []byte, meta metav1.ListMeta, listed int) []byte {
	encoded, err := meta.Marshal()
	if err != nil {
		panic(err)
	}
	raw := field(len(encoded)) + listed
	named := metav1.TypeMeta{Kind: f.kind.name + "List", APIVersion: f.kind.apiVersion()}
	return append(prefix(unknownBegin(buffer, named, raw), first, len(encoded)), encoded...)
}

func (protobufFormat) listItem(buffer []byte, size int, _ bool) []byte {
	return prefix(buffer, second, size)
}

func (protobufFormat) listEnd(buffer []byte, _ metav1.ListMeta) []byte {
	return append(buffer, unknownEnd...)
}

// eventBegin is a frame: its length, and a metav1.WatchEvent around a runtime.RawExtension around the magic and a runtime.Unknown.
func (protobufFormat) eventBegin(buffer []byte, event string, meta metav1.TypeMeta, size int) []byte {
	object := len(protobufMagic) + field(typeMetaSize(meta)) + field(size) + len(unknownEnd)
	frame := field(len(event)) + field(field(object))
	buffer = binary.BigEndian.AppendUint32(buffer, uint32(frame))
	buffer = append(prefix(buffer, first, len(event)), event...)
	buffer = prefix(prefix(buffer, second, field(object)), first, object)
	return unknownBegin(buffer, meta, size)
}

func (protobufFormat) eventEnd(buffer []byte) []byte { return append(buffer, unknownEnd...) }

// unknownBegin is the magic, and runtime.Unknown up to its raw bytes.
func unknownBegin(buffer []byte, meta metav1.TypeMeta, raw int) []byte {
	buffer = prefix(append(buffer, protobufMagic...), first, typeMetaSize(meta))
	buffer = append(prefix(buffer, first, len(meta.APIVersion)), meta.APIVersion...)
	buffer = append(prefix(buffer, second, len(meta.Kind)), meta.Kind...)
	return prefix(buffer, second, raw)
}

func typeMetaSize(meta metav1.TypeMeta) int {
	return field(len(meta.APIVersion)) + field(len(meta.Kind))
}

// prefix is a field's tag and length.
func prefix(buffer []byte, tag byte, length int) []byte {
	return binary.AppendUvarint(append(buffer, tag), uint64(length))
}

// field is the size of a field with bytes of this length.
func field(length int) int {
	size := 2 + length
	for rest := length >> 7; rest > 0; rest >>= 7 {
		size++
	}
	return size
}
