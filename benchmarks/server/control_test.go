package main

import (
	"net/http/httptest"
	"testing"
	"testing/synctest"
)

func TestObjectsTakeTurnsAndAHotOneIsAlwaysTheSame(t *testing.T) {
	b := start(t, "leases", 10, true)
	events := b.watch("resourceVersion=" + written(b.api.store.newest()))
	told := func(query string, count int) map[string]int {
		b.post("/modify?" + query)
		changes := map[string]int{}
		for range count {
			changes[next(t, events).Object.Metadata.Name]++
		}
		return changes
	}
	turns := told("count=20", 20)
	for name, changes := range turns {
		if changes != 2 {
			t.Errorf("%s has changed %d times in two rounds", name, changes)
		}
	}
	if len(turns) != 10 {
		t.Errorf("%d objects have changed", len(turns))
	}
	if hot := told("count=5&hot=1", 5); len(hot) != 1 {
		t.Errorf("%v have changed", hot)
	}
}

func TestARateIsNotExceeded(t *testing.T) {
	b := start(t, "leases", 1, true)
	if told := b.post("/modify?count=51&rate=1000"); told["seconds"].(float64) < 0.05 {
		t.Errorf("51 changes at 1000 a second took %v s", told["seconds"])
	}
}

func TestModifyAnswersWhenEveryWatchHasWrittenAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		served := newAPI(kinds["leases"], 5, testSeed, "secret")
		f, _ := served.store.followAll()
		answered := make(chan struct{})
		go func() {
			newControl(served).handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/modify?count=3", nil))
			close(answered)
		}()
		for version := uint64(firstVersion + 5 + 1); version <= firstVersion+5+3; version++ {
			synctest.Wait()
			select {
			case <-answered:
				t.Fatalf("answered before %d was written", version)
			default:
			}
			served.store.wrote(f, version)
		}
		<-answered
	})
}
