// Client_go is client-go's shared informer as a peer of the benchmark (PROTOCOL.md, two folders up).
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
	"runtime/debug"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
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
	counter := newCounter(*objects, *listener != "none")
	if err := listen(informer, counter, *burn); err != nil {
		log.Fatal(err)
	}
	go informer.Run(wait.NeverStop)
	if !cache.WaitForCacheSync(wait.NeverStop, informer.HasSynced) || len(informer.GetStore().ListKeys()) != *objects {
		log.Fatalf("synced with %d objects of %d", len(informer.GetStore().ListKeys()), *objects)
	}
	say(line{"event": "synced", "objects": *objects, "version": version()})
	if err := obey(os.Stdin, informer.GetIndexer(), counter); err != nil {
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
func listen(informer cache.SharedIndexInformer, counter *counter, burn bool) error {
	if counter.listens {
		if _, err := informer.AddEventHandler(counter); err != nil {
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

// version is that of the library, as it was built in.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, module := range info.Deps {
			if module.Path == "k8s.io/client-go" {
				return fmt.Sprintf("client-go %s", strings.TrimPrefix(module.Version, "v"))
			}
		}
	}
	return "client-go"
}
