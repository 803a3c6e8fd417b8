package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// control is what the driver uses to make things happen.
type control struct {
	api *api
	// turns are the objects in the order in which they change: that of their numbers, which isn't that of lists.
	turns []uint32
	// mutex lets one request change objects at a time; next is whose turn it is.
	mutex sync.Mutex
	next  int
}

func newControl(served *api) *control {
	made := &control{api: served, turns: make([]uint32, len(served.order))}
	for at, number := range served.order {
		made.turns[number] = uint32(at)
	}
	return made
}

func (c *control) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /modify", c.modify)
	mux.HandleFunc("POST /expire", func(w http.ResponseWriter, _ *http.Request) {
		c.api.store.expire()
		answer(w, http.StatusOK, plain, map[string]any{"version": written(c.api.store.newest())})
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, plain, map[string]any{
			"lists": c.api.lists.Load(), "pages": c.api.pages.Load(), "streams": c.api.streams.Load(), "watches": c.api.watches.Load(),
			"open": c.api.open.Load(), "bytes": c.api.bytes.Load(), "modified": c.api.store.changed(), "statuses": c.api.store.statuses(),
		})
	})
	return mux
}

// modify changes objects at a rate and answers when every watch has written that.
func (c *control) modify(w http.ResponseWriter, r *http.Request) {
	count, rate, hot, err := wishes(r.URL.Query())
	if err != nil || len(c.turns) == 0 {
		http.Error(w, fmt.Sprint("count and rate are numbers, hot is 0 or 1, and there are objects: ", err), http.StatusBadRequest)
		return
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	began := time.Now()
	sent, err := c.run(r.Context(), count, rate, hot)
	if err == nil {
		err = c.api.store.settle(r.Context())
	}
	told := map[string]any{"sent": sent, "seconds": time.Since(began).Seconds(), "open": c.api.open.Load()}
	if err != nil {
		told["error"] = err.Error()
	}
	answer(w, http.StatusOK, plain, told)
}

func wishes(values url.Values) (count, rate int, hot bool, err error) {
	if count, err = strconv.Atoi(values.Get("count")); err != nil {
		return
	}
	if text := values.Get("rate"); text != "" {
		if rate, err = strconv.Atoi(text); err != nil || rate < 0 {
			return 0, 0, false, fmt.Errorf("rate %q", text)
		}
	}
	return count, rate, values.Get("hot") == "1", nil
}

// run makes `count` changes, each when it's due; those that are late follow at once.
func (c *control) run(ctx context.Context, count, rate int, hot bool) (sent int, err error) {
	began := time.Now()
	for ; sent < count; sent++ {
		if rate > 0 {
			sleepUntil(began.Add(time.Duration(sent) * time.Second / time.Duration(rate)))
		}
		at := c.turns[0]
		if !hot {
			at = c.turns[c.next]
			c.next = (c.next + 1) % len(c.turns)
		}
		if err := c.api.store.modify(ctx, int(at)); err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// sleepUntil sleeps in the kernel: the runtime's timers are a millisecond late or more, which makes bursts of what should be even.
func sleepUntil(due time.Time) {
	for left := time.Until(due); left > 0; left = time.Until(due) {
		wanted := syscall.NsecToTimespec(int64(left))
		// Interrupted or not: the clock is asked again.
		_ = syscall.Nanosleep(&wanted, nil)
	}
}
