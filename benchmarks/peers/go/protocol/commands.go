package protocol

import (
	"bufio"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// reads is how often the index is asked.
const reads = 200

// Obey does what the lines say, until they end. `counter` is nil without a listener; `read` asks the index for one value and returns how
// many objects have it.
func Obey(lines io.Reader, counter *Counter, read func() (int, error)) error {
	scanner := bufio.NewScanner(lines)
	for scanner.Scan() {
		words := strings.Fields(scanner.Text())
		if len(words) == 0 {
			continue
		}
		if err := obey(words, counter, read); err != nil {
			return err
		}
	}
	return scanner.Err()
}

func obey(words []string, counter *Counter, read func() (int, error)) error {
	switch words[0] {
	case "expect":
		if len(words) < 2 || counter == nil {
			return fmt.Errorf("%q: expect takes a number, and a listener that counts", words)
		}
		changes, err := strconv.Atoi(words[1])
		if err != nil {
			return err
		}
		counter.expect(changes, slices.Contains(words[2:], "latency"))
	case "read":
		taken, values, err := median(read)
		if err != nil {
			return err
		}
		Say(Line{"event": "read", "median": taken.Seconds(), "values": values})
	case "lists":
		// An informer doesn't tell how often it has listed.
		Say(Line{"event": "lists", "lists": nil})
	default:
		return fmt.Errorf("no such command: %q", words)
	}
	return nil
}

// median is the median time of a read, and what the last one returned.
func median(read func() (int, error)) (taken time.Duration, values int, err error) {
	times := make([]time.Duration, reads)
	for at := range times {
		began := time.Now()
		values, err = read()
		times[at] = time.Since(began)
		if err != nil {
			return 0, 0, err
		}
	}
	slices.Sort(times)
	return times[reads/2], values, nil
}

// Version is that of a module, as it was built in, after the library's name.
func Version(library, module string) string {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, dependency := range info.Deps {
			if dependency.Path == module {
				return fmt.Sprintf("%s %s", library, strings.TrimPrefix(dependency.Version, "v"))
			}
		}
	}
	return library
}
