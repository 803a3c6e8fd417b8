package main

import (
	"fmt"
	"net/http"
	"testing"
)

const observed = `{"status":{"seen":"1795281027757365553"}}`

func TestAStatusIsWrittenOnceAndComesToTheWatches(t *testing.T) {
	bothProtocols(t, func(t *testing.T, http2 bool) {
		b := start(t, "customs", 40, http2)
		page := read[seen](t, b.get("limit=40").Body)
		events := b.watch("resourceVersion=" + page.Metadata.ResourceVersion)
		answer := b.patchStatus(page.Items[7], observed)
		written := read[seen](t, answer.Body)
		if answer.StatusCode != http.StatusOK || seenIn(t, written) != "1795281027757365553" {
			t.Fatalf("%d: %v", answer.StatusCode, written)
		}
		told := next(t, events)
		if told.Type != "MODIFIED" || told.Object.Metadata.Name != page.Items[7].Metadata.Name || seenIn(t, told.Object) != "1795281027757365553" {
			t.Fatalf("the watch says %v", told)
		}
		if again := read[seen](t, b.patchStatus(page.Items[7], observed).Body); again.Metadata.ResourceVersion != written.Metadata.ResourceVersion {
			t.Fatal("a write without a change has made a version")
		}
		// The next change of the object leaves its status alone.
		b.post("/modify?count=40")
		for range 40 {
			if told := next(t, events); told.Object.Metadata.Name == page.Items[7].Metadata.Name && seenIn(t, told.Object) != "1795281027757365553" {
				t.Fatalf("the status is %s", seenIn(t, told.Object))
			}
		}
		if written := b.api.store.statuses(); written != 1 {
			t.Fatalf("%d were written", written)
		}
	})
}

func TestAStatusOfAnotherVersionIsAConflict(t *testing.T) {
	b := start(t, "customs", 3, true)
	one := read[seen](t, b.get("limit=3").Body).Items[0]
	b.post("/modify?count=3")
	stale := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"status":{"seen":"1795281027757365553"}}`, one.Metadata.ResourceVersion)
	if answer := b.patchStatus(one, stale); answer.StatusCode != http.StatusConflict {
		t.Fatal(answer.Status)
	}
	if written := b.api.store.statuses(); written != 0 {
		t.Fatalf("%d were written", written)
	}
}

func TestNothingButTheStatusOfAnObjectIsWritten(t *testing.T) {
	b := start(t, "customs", 3, true)
	one := read[seen](t, b.get("limit=3").Body).Items[0]
	for _, body := range []string{`{"status":{"phase":"Ready"}}`, `{"status":{"seen":"1795281027757365553","phase":"Ready"}}`, `{"status":{"seen":"1"}}`, `{}`, `[`} {
		if answer := b.patchStatus(one, body); answer.StatusCode != http.StatusBadRequest {
			t.Fatalf("%s: %s", body, answer.Status)
		}
	}
	one.Metadata.Name = "nobody"
	if answer := b.patchStatus(one, observed); answer.StatusCode != http.StatusNotFound {
		t.Fatal(answer.Status)
	}
}

func seenIn(t *testing.T, object seen) string {
	t.Helper()
	status, ok := object.Status.(map[string]any)
	if !ok {
		t.Fatalf("no status: %v", object)
	}
	return status["seen"].(string)
}
