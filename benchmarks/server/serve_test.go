package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func bothProtocols(t *testing.T, check func(t *testing.T, http2 bool)) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP/2 %t", http2), func(t *testing.T) { check(t, http2) })
	}
}

func TestPagesAreOfOneVersionAndTheWatchGoesOnFromThere(t *testing.T) {
	bothProtocols(t, func(t *testing.T, http2 bool) {
		b := start(t, "customs", 2100, http2)
		changed := 0
		items, version := b.pages(500, func() { b.post("/modify?count=700"); changed += 700 })
		if len(items) != 2100 || len(stateOf(items)) != 2100 {
			t.Fatalf("%d items", len(items))
		}
		for at, item := range items {
			if item.Metadata.ResourceVersion > version {
				t.Fatalf("item %d is of %s, the list of %s", at, item.Metadata.ResourceVersion, version)
			}
			if before := max(at-1, 0); items[before].Metadata.Namespace+"/"+items[before].Metadata.Name > item.Metadata.Namespace+"/"+item.Metadata.Name {
				t.Fatalf("item %d is out of order", at)
			}
		}
		state := stateOf(items)
		play(t, b.watch("resourceVersion="+version), state, version, changed)
		now, _ := b.pages(5000, nil)
		equal(t, state, stateOf(now))
	})
}

func TestAStreamingListEndsWithItsBookmarkAndGoesOn(t *testing.T) {
	bothProtocols(t, func(t *testing.T, http2 bool) {
		b := start(t, "leases", 1500, http2)
		b.post("/modify?count=10")
		events := b.watch("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
		items := []seen{}
		told := next(t, events)
		for ; told.Type == "ADDED"; told = next(t, events) {
			items = append(items, told.Object)
		}
		if told.Type != "BOOKMARK" || told.Object.Metadata.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
			t.Fatalf("the list ends with %v", told)
		}
		state := stateOf(items)
		answered := b.post("/modify?count=40&hot=1")
		if answered["sent"] != 40.0 || answered["open"] != 1.0 {
			t.Fatal(answered)
		}
		play(t, events, state, told.Object.Metadata.ResourceVersion, 40)
		now := read[seen](t, b.get("resourceVersion=0&limit=3").Body)
		if len(now.Items) != 1500 {
			t.Fatalf("a list at version 0 has %d items", len(now.Items))
		}
		equal(t, state, stateOf(now.Items))
	})
}

func TestExpireEndsWatchesAndOldVersions(t *testing.T) {
	b := start(t, "leases", 30, true)
	page := read[seen](t, b.get("limit=10").Body)
	events := b.watch("resourceVersion=" + page.Metadata.ResourceVersion)
	b.post("/modify?count=1")
	next(t, events)
	b.post("/expire")
	if err := events.Decode(&event{}); err != io.EOF {
		t.Fatal(err)
	}
	if told := next(t, b.watch("resourceVersion="+page.Metadata.ResourceVersion)); told.Type != "ERROR" || told.Object.Code != http.StatusGone {
		t.Fatalf("the watch goes on with %v", told)
	}
	answer := b.get("continue=" + page.Metadata.Continue)
	if told := read[seen](t, answer.Body); answer.StatusCode != http.StatusGone || told.Reason != "Expired" {
		t.Fatalf("the list goes on with %v", told)
	}
	fresh := read[seen](t, b.get("").Body)
	b.post("/modify?count=1")
	if told := next(t, b.watch("resourceVersion="+fresh.Metadata.ResourceVersion)); told.Type != "MODIFIED" {
		t.Fatalf("after a fresh list comes %v", told)
	}
}

func TestAChangeSaysWhenItWasMade(t *testing.T) {
	b := start(t, "pods", 10, true)
	events := b.watch("resourceVersion=" + written(b.api.store.newest()))
	before := time.Now().UnixNano()
	b.post("/modify?count=1")
	sent, err := strconv.ParseInt(next(t, events).Object.Metadata.Annotations[sentAnnotation], 10, 64)
	if err != nil || sent < before || sent > time.Now().UnixNano() {
		t.Fatalf("sent at %d, asked for at %d: %v", sent, before, err)
	}
}

func TestAQuietWatchSendsBookmarksToThoseWhoAllowThem(t *testing.T) {
	b := start(t, "pods", 10, false)
	b.api.quiet = time.Millisecond
	newest := written(b.api.store.newest())
	told := next(t, b.watch("allowWatchBookmarks=true&resourceVersion="+newest))
	if told.Type != "BOOKMARK" || told.Object.Metadata.ResourceVersion != newest || told.Object.Metadata.Annotations != nil {
		t.Fatalf("%v", told)
	}
	silent := b.watch("timeoutSeconds=1&resourceVersion=" + newest)
	if err := silent.Decode(&event{}); err != io.EOF {
		t.Fatalf("a watch without bookmarks ends with %v", err)
	}
}

func TestProtobufFramesAreCountedAndEnd(t *testing.T) {
	b := start(t, "pods", 200, true)
	answer := b.ask(b.api.kind.path()+"?watch=true&resourceVersion=0&timeoutSeconds=1", "application/vnd.kubernetes.protobuf,application/json", "secret")
	if media := answer.Header.Get("Content-Type"); media != "application/vnd.kubernetes.protobuf;stream=watch" {
		t.Fatal(media)
	}
	frames, in := 0, bufio.NewReader(answer.Body)
	for ; ; frames++ {
		var length uint32
		if err := binary.Read(in, binary.BigEndian, &length); err == io.EOF {
			break
		}
		if _, err := io.CopyN(io.Discard, in, int64(length)); err != nil {
			t.Fatal(err)
		}
	}
	if frames != 200 {
		t.Fatalf("%d frames", frames)
	}
}

func TestTheWishesOfAClientAreMet(t *testing.T) {
	pods, customs := start(t, "pods", 1, true), start(t, "customs", 1, true)
	const protobuf, json = "application/vnd.kubernetes.protobuf", "application/json"
	cases := []struct {
		bench        *bench
		accept, want string
	}{
		{pods, protobuf + "," + json, protobuf}, {pods, json + "," + protobuf, json}, {pods, "*/*", json}, {pods, "", json},
		{pods, json + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, " + protobuf, protobuf}, {customs, protobuf + "," + json, json},
	}
	for _, wish := range cases {
		answer := wish.bench.ask(wish.bench.api.kind.path(), wish.accept, "secret")
		if got := answer.Header.Get("Content-Type"); got != wish.want {
			t.Errorf("%q is answered with %q", wish.accept, got)
		}
	}
}

func TestWhatIsNotServedIsRefused(t *testing.T) {
	b := start(t, "pods", 5, true)
	path := b.api.kind.path()
	cases := []struct {
		path, token string
		code        int
	}{
		{path, "wrong", 401}, {"/api/v1/nodes", "secret", 404}, {path + "?labelSelector=a", "secret", 400}, {path + "?limit=x", "secret", 400},
		{path + "?continue=x", "secret", 400}, {path + "?resourceVersion=8000000000", "secret", 504}, {path + "?sendInitialEvents=true", "secret", 400},
	}
	for _, wrong := range cases {
		answer := b.ask(wrong.path, "application/json", wrong.token)
		if told := read[seen](t, answer.Body); answer.StatusCode != wrong.code || told.Code != wrong.code {
			t.Errorf("%s is answered with %d %v", wrong.path, answer.StatusCode, told)
		}
	}
}

func TestDiscoveryNamesTheResource(t *testing.T) {
	for name, kind := range kinds {
		b := start(t, name, 1, true)
		collection, _ := url.Parse(kind.path())
		told := read[metav1.APIResourceList](t, b.ask(collection.Path[:len(collection.Path)-len(kind.resource)-1], "application/json", "secret").Body)
		if told.GroupVersion != kind.apiVersion() || !slices.ContainsFunc(told.APIResources, func(r metav1.APIResource) bool { return r.Name == kind.resource && r.Kind == kind.name }) {
			t.Errorf("%s: %v", name, told)
		}
		root := map[bool]string{true: "/api", false: "/apis"}[kind.group == ""]
		for _, path := range []string{"/version", "/api", "/apis"} {
			answer := b.ask(path, aggregated+",application/json", "secret")
			described := read[struct{ Items []any }](t, answer.Body)
			if answer.StatusCode != http.StatusOK || len(described.Items) != map[bool]int{true: 1}[path == root] {
				t.Errorf("%s at %s: %d %v", name, path, answer.StatusCode, described)
			}
		}
	}
}

func TestStatisticsTellWhatWasAsked(t *testing.T) {
	b := start(t, "leases", 30, true)
	b.pages(10, func() {})
	b.post("/modify?count=7")
	next(t, b.watch("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"))
	next(t, b.watch("resourceVersion=0"))
	next(t, b.watch("resourceVersion=1"))
	answer, err := http.Get(b.control.URL + "/stats")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	told := read[map[string]int](t, answer.Body)
	if told["bytes"] < 3*30*300 {
		t.Errorf("%d bytes", told["bytes"])
	}
	delete(told, "bytes")
	if want := fmt.Sprint(map[string]int{"lists": 1, "pages": 3, "streams": 1, "watches": 2, "open": 2, "modified": 7, "statuses": 0}); fmt.Sprint(told) != want {
		t.Errorf("%v, not %s", told, want)
	}
}
