package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/tools/cache"
)

// reads is how often the index is asked.
const reads = 200

// obey does what the lines say, until they end.
func obey(lines io.Reader, indexer cache.Indexer, counter *counter) error {
	scanner := bufio.NewScanner(lines)
	for scanner.Scan() {
		words := strings.Fields(scanner.Text())
		if len(words) == 0 {
			continue
		}
		if err := do(words, indexer, counter); err != nil {
			return err
		}
	}
	return scanner.Err()
}

func do(words []string, indexer cache.Indexer, counter *counter) error {
	switch words[0] {
	case "expect":
		if len(words) < 2 || !counter.listens {
			return fmt.Errorf("%q: expect takes a number, and a listener that counts", words)
		}
		changes, err := strconv.Atoi(words[1])
		if err != nil {
			return err
		}
		counter.expect(changes, slices.Contains(words[2:], "latency"))
	case "read":
		taken, values, err := read(indexer)
		if err != nil {
			return err
		}
		say(line{"event": "read", "median": taken.Seconds(), "values": values})
	case "lists":
		// An informer doesn't tell how often it has listed.
		say(line{"event": "lists", "lists": nil})
	default:
		return fmt.Errorf("no such command: %q", words)
	}
	return nil
}

// read is the median time of asking the index for one value, and how many objects have it.
func read(indexer cache.Indexer) (median time.Duration, values int, err error) {
	known := indexer.ListIndexFuncValues(index)
	if len(known) == 0 {
		return 0, 0, fmt.Errorf("the index is empty")
	}
	value, taken := slices.Min(known), make([]time.Duration, reads)
	for at := range taken {
		began := time.Now()
		found, err := indexer.ByIndex(index, value)
		taken[at] = time.Since(began)
		if err != nil {
			return 0, 0, err
		}
		values = len(found)
	}
	slices.Sort(taken)
	return taken[reads/2], values, nil
}
