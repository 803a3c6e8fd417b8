// Controller_runtime is a controller of controller-runtime as a peer of the benchmark (PROTOCOL.md, three folders up).
//
// It is what `kubebuilder create api` makes: a manager, a typed custom resource with generated deep copies, and one reconciler. The settings
// are the defaults, but for the number of workers, which is the same for all peers, and the rate of requests, which has no limit.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"declctl.dev/benchmarks/peers/protocol"
)

func main() {
	flags := flag.NewFlagSet("controller_runtime", flag.ExitOnError) // the default set has a flag of controller-runtime's with the same name
	kubeconfig := flags.String("kubeconfig", "", "where the server is")
	kind := flags.String("kind", "customs", "customs alone")
	objects := flags.Int("objects", 0, "how many there are")
	listener := flags.String("listener", "reconcile", "reconcile, or reconcile-status: with a patch of the status")
	workers := flags.Int("workers", 8, "how many objects are reconciled at once")
	_ = flags.Parse(os.Args[1:])
	if *kind != "customs" || (*listener != "reconcile" && *listener != "reconcile-status") {
		log.Fatalf("no reconciler of %s with %s", *kind, *listener)
	}
	ctrl.SetLogger(logr.Discard())
	manager, err := newManager(*kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	counter := protocol.NewCounter(*objects)
	reconciler := &customs{Client: manager.GetClient(), counter: counter, patches: *listener == "reconcile-status"}
	options := controller.Options{MaxConcurrentReconciles: *workers}
	if err := ctrl.NewControllerManagedBy(manager).For(&Custom{}).WithOptions(options).Complete(reconciler); err != nil {
		log.Fatal(err)
	}
	ctx := ctrl.SetupSignalHandler()
	go func() {
		if err := manager.Start(ctx); err != nil {
			log.Fatal(err)
		}
	}()
	if _, err := manager.GetCache().GetInformer(ctx, &Custom{}); err != nil || !manager.GetCache().WaitForCacheSync(ctx) {
		log.Fatalf("not synced: %v", err)
	}
	version := protocol.Version("controller-runtime", "sigs.k8s.io/controller-runtime")
	protocol.Say(protocol.Line{"event": "synced", "objects": *objects, "version": version})
	read := func() (int, error) {
		var found CustomList
		err := manager.GetClient().List(ctx, &found, client.InNamespace("team-0"))
		return len(found.Items), err
	}
	if err := protocol.Obey(os.Stdin, counter, read); err != nil {
		log.Fatal(err)
	}
}

func newManager(kubeconfig string) (ctrl.Manager, error) {
	settings, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	settings.QPS = -1
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(groupVersion, &Custom{}, &CustomList{})
	metav1.AddToGroupVersion(scheme, groupVersion)
	return ctrl.NewManager(settings, ctrl.Options{Scheme: scheme, Metrics: server.Options{BindAddress: "0"}})
}

// customs reconciles Customs: what it has seen of bench/sent is to be in status.seen.
type customs struct {
	client.Client
	counter *protocol.Counter
	patches bool
	before  sync.Map // the last bench/sent of each object
}

// Reconcile counts a change once, at the first call that sees it: after the patch, if there is one to send.
func (c *customs) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	now := time.Now()
	var custom Custom
	if err := c.Get(ctx, request.NamespacedName, &custom); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	sent := protocol.Sent(&custom)
	before, known := c.before.Swap(request.NamespacedName, sent)
	if known && before == sent {
		return reconcile.Result{}, nil
	}
	if c.patches && custom.Status.Seen != sent {
		base := client.MergeFrom(custom.DeepCopy())
		custom.Status.Seen = sent
		if err := c.Status().Patch(ctx, &custom, base); err != nil {
			log.Fatal(err)
		}
	}
	if known {
		c.counter.Changed(now, &custom)
	} else {
		c.counter.Added()
	}
	return reconcile.Result{}, nil
}
