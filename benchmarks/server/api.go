package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// api is one resource as an API server serves it: all namespaces, no selectors but those of shards.
type api struct {
	kind    *kind
	seed    uint64
	order   []uint32                // the number of each object, in the order of lists
	numbers func() map[identity]int // the place of each object in that order
	store   *store
	token   string
	json    func() (*prepared, error)
	proto   func() (*prepared, error)
	shards  shards        // nil if it does not select by them
	quiet   time.Duration // how long a watch says nothing before it sends a bookmark
	counters
}

// counters are what /stats tells.
type counters struct{ lists, pages, streams, watches, open, bytes atomic.Int64 }

func newAPI(kind *kind, count int, seed uint64, token string) *api {
	served := &api{kind: kind, seed: seed, order: order(kind, count, seed), store: newStore(count), token: token, quiet: bookmarkEvery}
	object := func(at int) any { return kind.object(seed, int(served.order[at])) }
	once := func(format format) func() (*prepared, error) {
		return sync.OnceValues(func() (*prepared, error) { return prepare(format, count, object) })
	}
	served.numbers = sync.OnceValue(served.places)
	served.json, served.proto = once(jsonFormat{kind}), once(protobufFormat{kind})
	return served
}

// selectByShards has the server know shardSelector from now on, as behind the feature gate; before, it does not see it.
func (a *api) selectByShards() {
	a.shards = hashes(len(a.order), func(at int) any { return a.kind.object(a.seed, int(a.order[at])) })
}

// handler answers as the API server does: /version, discovery, and the resource.
func (a *api) handler() http.Handler {
	mux := http.NewServeMux()
	a.discovery(mux)
	mux.HandleFunc("GET "+a.kind.path(), a.serve)
	if a.kind.status {
		mux.HandleFunc("PATCH "+a.kind.statusPath(), a.patchStatus)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, apierrors.NewNotFound(schema.GroupResource{}, r.URL.Path))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+a.token {
			refuse(w, apierrors.NewUnauthorized("Unauthorized"))
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// serve lists or watches, as the parameters say.
func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	asked, err := a.question(r)
	if err != nil {
		refuse(w, err)
		return
	}
	prepared, err := a.negotiate(r.Header.Get("Accept"))
	if err != nil {
		refuse(w, apierrors.NewInternalError(err))
		return
	}
	if asked.watch {
		err = a.watch(w, r, asked, prepared)
	} else {
		err = a.list(w, r, asked, prepared)
	}
	if err != nil {
		refuse(w, err)
	}
}

// negotiate takes the first of the client's wishes that there is; it prepares the objects if nobody asked for them before.
func (a *api) negotiate(accept string) (*prepared, error) {
	for wish := range strings.SplitSeq(accept, ",") {
		media, parameters, _ := strings.Cut(strings.TrimSpace(wish), ";")
		if strings.Contains(parameters, "as=") {
			continue
		}
		if media == runtime.ContentTypeProtobuf && a.kind.typed {
			return a.proto()
		}
		if media == runtime.ContentTypeJSON || media == "*/*" {
			break
		}
	}
	return a.json()
}

// question is what a client asked for.
type question struct {
	watch, stream, bookmarks bool
	version                  uint64 // 0 if it doesn't matter
	unset, zero              bool   // no version, or the version "0"
	limit, timeout           int
	next                     string
	part                     part
}

func (a *api) question(r *http.Request) (question, error) {
	values := r.URL.Query()
	for _, unsupported := range []string{"labelSelector", "fieldSelector"} {
		if values.Get(unsupported) != "" {
			return question{}, apierrors.NewBadRequest("this server knows no " + unsupported)
		}
	}
	asked := question{
		watch: truth(values.Get("watch")), stream: truth(values.Get("sendInitialEvents")), bookmarks: truth(values.Get("allowWatchBookmarks")),
		next: values.Get("continue"), unset: values.Get("resourceVersion") == "", zero: values.Get("resourceVersion") == "0",
	}
	var problem error
	number := func(name string) uint64 {
		text := values.Get(name)
		if text == "" {
			return 0
		}
		read, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			problem = apierrors.NewBadRequest(fmt.Sprintf("%s: %q is no number", name, text))
		}
		return read
	}
	asked.version, asked.limit, asked.timeout = number("resourceVersion"), int(number("limit")), int(number("timeoutSeconds"))
	if asked.stream && (!asked.watch || values.Get("resourceVersionMatch") != string(metav1.ResourceVersionMatchNotOlderThan)) {
		problem = apierrors.NewBadRequest("sendInitialEvents is for a watch with resourceVersionMatch=NotOlderThan")
	}
	if selector := values.Get("shardSelector"); selector != "" && a.shards != nil && problem == nil {
		asked.part, problem = a.shards.part(selector)
	}
	if newest := a.store.newest(); problem == nil && asked.version > newest && (!asked.watch || asked.stream) {
		problem = tooLarge(asked.version, newest)
	}
	return asked, problem
}

func truth(text string) bool { return text == "true" || text == "1" || text == "True" }

// tooLarge is what clients take as "ask again a little later".
func tooLarge(asked, newest uint64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", asked, newest), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{
		{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"},
	}
	return err
}

// refuse answers with a Status.
func refuse(w http.ResponseWriter, err error) {
	status := statusOf(err)
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	answer(w, int(status.Code), runtime.ContentTypeJSON, status)
}

func statusOf(err error) metav1.Status {
	if told, ok := err.(apierrors.APIStatus); ok {
		return told.Status()
	}
	return apierrors.NewInternalError(err).ErrStatus
}

func answer(w http.ResponseWriter, code int, mediaType string, what any) {
	w.Header().Set("Content-Type", mediaType)
	w.WriteHeader(code)
	// A client that has gone is told nothing.
	_ = json.NewEncoder(w).Encode(what)
}
