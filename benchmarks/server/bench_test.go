package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bench is a server with its controls and a client of it.
type bench struct {
	t       *testing.T
	api     *api
	server  *httptest.Server
	control *httptest.Server
	client  *http.Client
}

func start(t *testing.T, kind string, count int, http2 bool) *bench {
	return serve(t, newAPI(kinds[kind], count, testSeed, "secret"), http2)
}

func serve(t *testing.T, api *api, http2 bool) *bench {
	made := &bench{t: t, api: api}
	made.server = httptest.NewUnstartedServer(made.api.handler())
	made.server.EnableHTTP2 = http2
	made.server.StartTLS()
	made.control = httptest.NewServer(newControl(made.api).handler())
	made.client = made.server.Client()
	if !http2 {
		made.client.Transport.(*http.Transport).TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	t.Cleanup(func() {
		made.server.CloseClientConnections()
		made.server.Close()
		made.control.Close()
	})
	return made
}

func (b *bench) get(query string) *http.Response {
	b.t.Helper()
	return b.ask(b.api.kind.path()+"?"+query, "application/json", "secret")
}

func (b *bench) ask(path, accept, token string) *http.Response {
	b.t.Helper()
	return b.request(http.MethodGet, path, nil, map[string]string{"Accept": accept, "Authorization": "Bearer " + token})
}

// patchStatus is a controller's write.
func (b *bench) patchStatus(of seen, body string) *http.Response {
	b.t.Helper()
	path := strings.NewReplacer("{namespace}", of.Metadata.Namespace, "{name}", of.Metadata.Name).Replace(b.api.kind.statusPath())
	headers := map[string]string{"Content-Type": "application/merge-patch+json", "Authorization": "Bearer secret"}
	return b.request(http.MethodPatch, path, strings.NewReader(body), headers)
}

func (b *bench) request(method, path string, body io.Reader, headers map[string]string) *http.Response {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	b.t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, method, b.server.URL+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	answer, err := b.client.Do(request)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { answer.Body.Close() })
	return answer
}

func (b *bench) post(what string) map[string]any {
	b.t.Helper()
	answer, err := http.Post(b.control.URL+what, "", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	defer answer.Body.Close()
	return read[map[string]any](b.t, answer.Body)
}

func read[T any](t *testing.T, from io.Reader) (made T) {
	t.Helper()
	if err := json.NewDecoder(from).Decode(&made); err != nil {
		t.Fatal(err)
	}
	return made
}

// seen is what the tests look at of any object, list or event.
type seen struct {
	Metadata struct {
		metav1.ListMeta
		Name        string
		Namespace   string
		Annotations map[string]string
	}
	Status  any
	Code    int
	Reason  string
	Details *metav1.StatusDetails
	Items   []seen
}

type event struct {
	Type   string
	Object seen
}

// pages lists page by page; `between` is called after each.
func (b *bench) pages(limit int, between func()) (items []seen, version string) {
	next := ""
	for {
		page := read[seen](b.t, b.get(fmt.Sprintf("limit=%d&continue=%s", limit, url.QueryEscape(next))).Body)
		items, version, next = append(items, page.Items...), page.Metadata.ResourceVersion, page.Metadata.Continue
		if next == "" {
			return items, version
		}
		between()
	}
}

func (b *bench) watch(query string) *json.Decoder {
	b.t.Helper()
	return json.NewDecoder(bufio.NewReader(b.get("watch=true&" + query).Body))
}

func next(t *testing.T, from *json.Decoder) (made event) {
	t.Helper()
	if err := from.Decode(&made); err != nil {
		t.Fatal(err)
	}
	return made
}

// play applies `count` changes of a watch to a list: versions must rise.
func play(t *testing.T, from *json.Decoder, state map[string]string, version string, count int) string {
	t.Helper()
	for range count {
		told := next(t, from)
		if told.Type != "MODIFIED" || told.Object.Metadata.ResourceVersion <= version {
			t.Fatalf("%s of %s after %s", told.Type, told.Object.Metadata.ResourceVersion, version)
		}
		version = told.Object.Metadata.ResourceVersion
		state[told.Object.Metadata.Namespace+"/"+told.Object.Metadata.Name] = version + told.Object.Metadata.Annotations[sentAnnotation]
	}
	return version
}

func stateOf(items []seen) map[string]string {
	state := map[string]string{}
	for _, item := range items {
		state[item.Metadata.Namespace+"/"+item.Metadata.Name] = item.Metadata.ResourceVersion + item.Metadata.Annotations[sentAnnotation]
	}
	return state
}

func equal(t *testing.T, got, want map[string]string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("the cache has\n%v\nand the server\n%v", got, want)
	}
}
