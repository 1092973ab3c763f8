// A controller as people write them with client-go: its own types and client, informers, a work queue,
// events, and an election of the one that works. crates/e2e/tests/sample_controller.rs lets it loose on a
// Pintle API server; site.yaml is its definition.
//
//	controller KUBECONFIG IDENTITY
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"

	corev1 "k8s.io/api/core/v1"
)

const namespace = "default"

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: controller KUBECONFIG IDENTITY"))
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := lead(ctx, os.Args[1], os.Args[2]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "controller:", err)
	os.Exit(1)
}

// lead stands for election and works while elected.
func lead(ctx context.Context, kubeconfig, identity string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.UserAgent = "sample-controller/" + identity
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	if err := addToScheme(scheme); err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	sites, err := newSites(config, scheme)
	if err != nil {
		return err
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: kube.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme, corev1.EventSource{Component: "sample-controller"})

	factory := informers.NewSharedInformerFactory(kube, 0)
	siteInformer := sites.informer()
	work, err := newController(kube, sites, siteInformer, factory, recorder)
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	go siteInformer.RunWithContext(ctx)

	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, namespace, "sample-controller", kube.CoreV1(), kube.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: identity, EventRecorder: recorder})
	if err != nil {
		return err
	}
	var failed error
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: "sample-controller", ReleaseOnCancel: true,
		// What client-go's own components take.
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				fmt.Println("leading")
				failed = work.run(ctx)
			},
			OnStoppedLeading: func() { fmt.Println("no longer leading") },
		},
	})
	if err != nil {
		return err
	}
	elector.Run(ctx)
	if ctx.Err() == nil && failed == nil {
		return fmt.Errorf("the lease was lost")
	}
	return failed
}
