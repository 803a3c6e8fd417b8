// Package protocol speaks PROTOCOL.md, three folders up, for the peers in Go.
package protocol

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

// Line is one of standard output.
type Line map[string]any

var output sync.Mutex

// Say writes a line; safe from any goroutine.
func Say(what Line) {
	encoded, err := json.Marshal(what)
	if err != nil {
		log.Fatal(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Fprintf(os.Stdout, "%s\n", encoded)
}

// Counter counts notifications, and says so when all have come. Safe from any goroutine.
type Counter struct {
	objects int
	mutex   sync.Mutex
	added   int
	changes int
	wanted  int
	delays  []time.Duration
	times   bool
}

// NewCounter counts the notifications of this many objects.
func NewCounter(objects int) *Counter { return &Counter{objects: objects} }

// Added counts the first notification of an object.
func (c *Counter) Added() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.added++; c.added == c.objects {
		Say(Line{"event": "added", "objects": c.added})
	}
}

// Changed counts a change of an object for which a handler was called at `now`.
func (c *Counter) Changed(now time.Time, object any) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.times {
		c.delays = append(c.delays, time.Duration(now.UnixNano()-stamp(object)))
	}
	if c.changes++; c.changes == c.wanted {
		c.report()
	}
}

// expect counts from here on.
func (c *Counter) expect(changes int, latency bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.changes, c.wanted, c.times, c.delays = 0, changes, latency, nil
	if latency {
		c.delays = make([]time.Duration, 0, changes)
	}
}

func (c *Counter) report() {
	told := Line{"event": "received", "changes": c.changes, "calls": c.changes, "objects": c.objects}
	if slices.Sort(c.delays); len(c.delays) > 0 {
		milliseconds := func(at int) float64 { return float64(c.delays[at]) / 1e6 }
		told["p50"], told["p99"] = milliseconds(len(c.delays)/2), milliseconds(len(c.delays)*99/100)
		told["most"] = milliseconds(len(c.delays) - 1)
	}
	c.times, c.delays = false, nil
	Say(told)
}

// Sent is the annotation bench/sent: when the server made the change, in nanoseconds since 1970, as 19 digits.
func Sent(object any) string {
	const annotation = "bench/sent"
	switch read := object.(type) {
	case *unstructured.Unstructured:
		text, _, _ := unstructured.NestedString(read.Object, "metadata", "annotations", annotation)
		return text
	case metav1.Object:
		return read.GetAnnotations()[annotation]
	}
	return ""
}

func stamp(object any) int64 {
	read, err := strconv.ParseInt(Sent(object), 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	return read
}
