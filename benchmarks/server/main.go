// Server is an API server for benchmarks: prepared bytes over TLS, so that what is measured is the client.
//
// All objects are made from a seed, encoded once for each format, and kept as bytes with two holes of a fixed width: the
// resourceVersion, and the annotation bench/sent. Serving copies the bytes and fills the holes. What clients see is what
// kube-apiserver writes, down to the order of fields, the pages, the watch frames and the flushes. PROTOCOL.md, one folder up,
// says what it promises.
package main

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
)

func main() {
	name := flag.String("kind", "pods", "pods, configmaps, secrets, leases or customs")
	count := flag.Int("objects", 1000, "how many")
	kubeconfig := flag.String("kubeconfig", "", "file to write when everything is ready")
	seed := flag.Uint64("seed", 1, "what the objects are made from")
	formats := flag.String("prepare", "json", "formats to prepare before that, of json,protobuf; others when they are asked for first")
	shards := flag.Bool("shards", false, "select by shardSelector, as behind the feature gate ShardedListAndWatch")
	flag.Parse()
	if kinds[*name] == nil || *count < 0 || *kubeconfig == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(kinds[*name], *count, *seed, *kubeconfig, *formats, *shards); err != nil {
		log.Fatal(err)
	}
}

// run serves until standard input ends.
func run(kind *kind, count int, seed uint64, kubeconfig, formats string, shards bool) error {
	token := rand.Text()
	served := newAPI(kind, count, seed, token)
	if shards {
		served.selectByShards()
	}
	for _, format := range strings.Split(formats, ",") {
		prepare := map[string]func() (*prepared, error){"json": served.json, "protobuf": served.proto}[format]
		if prepare == nil {
			return fmt.Errorf("no such format: %q", format)
		}
		if _, err := prepare(); err != nil {
			return err
		}
	}
	address, authority, err := serveTLS(served.handler())
	if err != nil {
		return err
	}
	if err := writeKubeconfig(kubeconfig, address, token, authority); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { log.Fatal(http.Serve(listener, newControl(served).handler())) }()
	if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"control": "http://" + listener.Addr().String()}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// serveTLS serves HTTP/2 and HTTP/1.1, as the client prefers.
func serveTLS(handler http.Handler) (address string, authority []byte, err error) {
	certificate, authority, err := certify()
	if err != nil {
		return "", nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: handler, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}}}
	go func() { log.Fatal(server.ServeTLS(listener, "", "")) }()
	return listener.Addr().String(), authority, nil
}
