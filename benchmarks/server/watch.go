package main

import (
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

const (
	batchSize     = 256
	bookmarkEvery = 10 * time.Second
	longestWatch  = time.Hour
)

// watch sends what changes, or all objects first, until the client goes, its time is over, or the versions expire.
func (a *api) watch(w http.ResponseWriter, r *http.Request, asked question, objects *prepared) error {
	flusher, ok := w.(http.Flusher)
	if !ok {
		return fmt.Errorf("%T cannot be flushed", w)
	}
	w.Header().Set("Content-Type", objects.format.streamType())
	out := &events{api: a, w: w, flusher: flusher, objects: objects, part: asked.part, done: r.Context().Done()}
	begin, known := a.follow(asked, out)
	if !known {
		return out.expired(asked.version)
	}
	defer a.store.leave(out.follower)
	a.open.Add(1)
	defer a.open.Add(-1)
	flusher.Flush()
	if begin != nil && (!out.all(begin) || asked.stream && !out.bookmark(begin.version, true)) {
		return nil
	}
	out.follow(asked)
	return nil
}

// follow registers the watch; with the state of all objects, if it begins with that.
func (a *api) follow(asked question, out *events) (begin *snapshot, known bool) {
	if asked.stream {
		a.streams.Add(1)
	} else {
		a.watches.Add(1)
	}
	if asked.stream || asked.unset || asked.zero {
		out.follower, begin = a.store.followAll()
		return begin, true
	}
	out.follower, known = a.store.follow(asked.version)
	return nil, known
}

// events is the writing side of one watch: one Write for an event, as the API server does it.
type events struct {
	api      *api
	w        http.ResponseWriter
	flusher  http.Flusher
	objects  *prepared
	part     part
	follower *follower
	done     <-chan struct{}
	buffer   []byte
}

// follow sends changes as they come: a flush when there is nothing more to be sent, or a batch is full.
func (e *events) follow(asked question) {
	limit := longestWatch
	if asked.timeout > 0 {
		limit = time.Duration(asked.timeout) * time.Second
	}
	over, quiet := time.NewTimer(limit), time.NewTimer(e.api.quiet)
	defer over.Stop()
	defer quiet.Stop()
	batch := make([]entry, batchSize)
	for {
		count := e.api.store.read(e.follower, batch)
		if count > 0 {
			if !e.changes(batch[:count]) {
				return
			}
			continue
		}
		quiet.Reset(e.api.quiet)
		select {
		case <-e.follower.wake:
		case <-quiet.C:
			if asked.bookmarks && !e.bookmark(e.follower.next-1, false) {
				return
			}
		case <-e.follower.ended:
			return
		case <-over.C:
			return
		case <-e.done:
			return
		}
	}
}

// changes writes a batch; false when the client has gone.
func (e *events) changes(batch []entry) bool {
	for _, changed := range batch {
		if e.part.has(changed.at) && !e.object(apiwatch.Modified, changed.at, changed.change) {
			return false
		}
	}
	e.flusher.Flush()
	e.api.store.wrote(e.follower, batch[len(batch)-1].version)
	return true
}

// all writes the state that the watch begins with.
func (e *events) all(begin *snapshot) bool {
	for at, state := range begin.states {
		if at%batchSize == 0 && e.over() {
			return false
		}
		if e.part.has(at) && !e.object(apiwatch.Added, at, state) {
			return false
		}
	}
	e.flusher.Flush()
	return true
}

// over says whether the client has gone, or the versions have expired.
func (e *events) over() bool {
	select {
	case <-e.done:
		return true
	case <-e.follower.ended:
		return true
	default:
		return false
	}
}

func (e *events) object(event apiwatch.EventType, at int, state change) bool {
	format := e.objects.format
	e.buffer = format.eventBegin(e.buffer[:0], string(event), e.api.kind.typeMeta(), e.objects.size(at))
	e.buffer = format.eventEnd(e.objects.append(e.buffer, at, state))
	return e.api.write(e.w, e.buffer) == nil
}

// bookmark says which version the client has seen; `initial` ends a streaming list.
func (e *events) bookmark(version uint64, initial bool) bool {
	meta := metav1.ObjectMeta{ResourceVersion: written(version)}
	if initial {
		meta.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	err := e.whole(apiwatch.Bookmark, e.api.kind.typeMeta(), e.api.kind.empty(meta))
	return err == nil
}

// expired is how a watch from an old version ends: with an event.
func (e *events) expired(version uint64) error {
	err := apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", version, e.api.store.newest()))
	status := err.Status()
	return e.whole(apiwatch.Error, metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, &status)
}

// whole writes an event with an object that isn't prepared.
func (e *events) whole(event apiwatch.EventType, meta metav1.TypeMeta, object any) error {
	encoded, err := e.objects.format.encode(object)
	if err != nil {
		return err
	}
	format := e.objects.format
	e.buffer = format.eventBegin(e.buffer[:0], string(event), meta, len(encoded))
	e.buffer = format.eventEnd(append(e.buffer, encoded...))
	err = e.api.write(e.w, e.buffer)
	e.flusher.Flush()
	return err
}
