// Client_go is client-go's shared informer as a peer of the benchmark (PROTOCOL.md, three folders up).
//
// It is what a controller written with client-go runs: a SharedIndexInformer from a factory, with one index and an event handler, all
// settings at their defaults (so it takes streaming lists). The modes are the three ways in which controllers use it: typed over protobuf
// (what Kubernetes' own controllers do, and what a clientset asks for now by default), typed over JSON (what typed clients of custom
// resources do, and what controller-runtime did for long), and dynamic (what generic controllers need).
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"declctl.dev/benchmarks/peers/protocol"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "where the server is")
	kind := flag.String("kind", "pods", "pods, configmaps, secrets, leases, customs (dynamic alone)")
	objects := flag.Int("objects", 0, "how many there are")
	mode := flag.String("mode", "typed-protobuf", "typed-protobuf, typed-json or dynamic")
	listener := flag.String("listener", "none", "none or sync: client-go has no other")
	burn := flag.Bool("burn", false, "a second handler that never returns")
	flag.Parse()
	if *listener != "none" && *listener != "sync" {
		log.Fatalf("client-go has no %s listener", *listener)
	}
	informer, err := informerOf(*kubeconfig, *kind, *mode)
	if err != nil {
		log.Fatal(err)
	}
	var counter *protocol.Counter
	if *listener != "none" {
		counter = protocol.NewCounter(*objects)
	}
	if err := listen(informer, counter, *burn); err != nil {
		log.Fatal(err)
	}
	go informer.Run(wait.NeverStop)
	if !cache.WaitForCacheSync(wait.NeverStop, informer.HasSynced) || len(informer.GetStore().ListKeys()) != *objects {
		log.Fatalf("synced with %d objects of %d", len(informer.GetStore().ListKeys()), *objects)
	}
	version := protocol.Version("client-go", "k8s.io/client-go")
	protocol.Say(protocol.Line{"event": "synced", "objects": *objects, "version": version})
	read := func() (int, error) { return readIndex(informer.GetIndexer()) }
	if err := protocol.Obey(os.Stdin, counter, read); err != nil {
		log.Fatal(err)
	}
}

// config is that of the kubeconfig, with the encoding of the mode, and no limit of requests.
func config(path, mode string) (*rest.Config, error) {
	read, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	read.QPS = -1
	switch mode {
	case "typed-protobuf":
		read.ContentType = runtime.ContentTypeProtobuf
		read.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	case "typed-json":
		read.ContentType, read.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	}
	return read, nil
}

// listen registers the handlers: one that counts, one that keeps a core busy. Each has a goroutine of its own in the informer.
func listen(informer cache.SharedIndexInformer, counter *protocol.Counter, burn bool) error {
	if counter != nil {
		if _, err := informer.AddEventHandler(handler{counter}); err != nil {
			return err
		}
	}
	if !burn {
		return nil
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) {
		for number := uint64(1); ; number = number*31 + 7 {
			burnt = number
		}
	}})
	return err
}

// burnt keeps the compiler from leaving the burning out.
var burnt uint64

// handler counts. The clock is read first.
type handler struct{ counter *protocol.Counter }

// OnAdd is called for what is in the first list, and never again: objects don't come or go.
func (h handler) OnAdd(any, bool) { h.counter.Added() }

// OnUpdate is called for changes, and after a relist for every object, changed or not.
func (h handler) OnUpdate(_, object any) { h.counter.Changed(time.Now(), object) }

// OnDelete is called for none.
func (h handler) OnDelete(object any) { log.Fatalf("deleted: %v", object) }

// readIndex asks the index for its lowest value, and returns how many objects have it.
func readIndex(indexer cache.Indexer) (int, error) {
	known := indexer.ListIndexFuncValues(index)
	if len(known) == 0 {
		return 0, fmt.Errorf("the index is empty")
	}
	found, err := indexer.ByIndex(index, slices.Min(known))
	return len(found), err
}
