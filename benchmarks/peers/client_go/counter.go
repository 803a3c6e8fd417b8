package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// line is one of standard output.
type line map[string]any

var output sync.Mutex

// say writes a line; safe from any goroutine.
func say(what line) {
	encoded, err := json.Marshal(what)
	if err != nil {
		log.Fatal(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Fprintf(os.Stdout, "%s\n", encoded)
}

// counter is the handler that counts what it's called with, and says so when all of it has come.
type counter struct {
	objects int
	listens bool
	mutex   sync.Mutex
	added   int
	changes int
	wanted  int
	delays  []time.Duration
	times   bool
}

func newCounter(objects int, listens bool) *counter {
	return &counter{objects: objects, listens: listens}
}

// OnAdd is called for what is in the first list, and never again: objects don't come or go.
func (c *counter) OnAdd(any, bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.added++; c.added == c.objects {
		say(line{"event": "added", "objects": c.added})
	}
}

// OnUpdate is called for changes, and after a relist for every object, changed or not. The clock is read first.
func (c *counter) OnUpdate(_, object any) {
	now := time.Now()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.times {
		c.delays = append(c.delays, time.Duration(now.UnixNano()-sent(object)))
	}
	if c.changes++; c.changes == c.wanted {
		c.tell()
	}
}

// OnDelete is called for none.
func (c *counter) OnDelete(object any) { log.Fatalf("deleted: %v", object) }

// expect counts from here on.
func (c *counter) expect(changes int, latency bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.changes, c.wanted, c.times, c.delays = 0, changes, latency, nil
	if latency {
		c.delays = make([]time.Duration, 0, changes)
	}
}

func (c *counter) tell() {
	told := line{"event": "received", "changes": c.changes, "calls": c.changes, "objects": c.objects}
	if slices.Sort(c.delays); len(c.delays) > 0 {
		milliseconds := func(at int) float64 { return float64(c.delays[at]) / 1e6 }
		told["p50"], told["p99"] = milliseconds(len(c.delays)/2), milliseconds(len(c.delays)*99/100)
		told["most"] = milliseconds(len(c.delays) - 1)
	}
	c.times, c.delays = false, nil
	say(told)
}

// sent is when the server made the change, in nanoseconds since 1970.
func sent(object any) int64 {
	const annotation = "bench/sent"
	var text string
	switch read := object.(type) {
	case *unstructured.Unstructured:
		text, _, _ = unstructured.NestedString(read.Object, "metadata", "annotations", annotation)
	case metav1.Object:
		text = read.GetAnnotations()[annotation]
	}
	stamp, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	return stamp
}
