package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
)

func init() {
	checks["leader-election"] = twoCandidates
}

// candidate takes part in the election until its context ends.
type candidate struct {
	name    string
	cancel  context.CancelFunc
	started chan struct{}
	done    chan struct{}
}

func (e *env) stand(client *kubernetes.Clientset, recorder record.EventRecorder, name string, release bool, leaders *diary) (*candidate, error) {
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, namespace, "election", client.CoreV1(), client.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: name, EventRecorder: recorder})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(e.ctx)
	c := &candidate{name: name, cancel: cancel, started: make(chan struct{}), done: make(chan struct{})}
	var once sync.Once
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 200 * time.Millisecond,
		ReleaseOnCancel: release, Name: name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { once.Do(func() { close(c.started) }) },
			OnStoppedLeading: func() {},
			OnNewLeader:      func(identity string) { leaders.write("%s sees %s", name, identity) },
		},
	})
	if err != nil {
		cancel()
		return nil, err
	}
	go func() {
		elector.Run(ctx)
		close(c.done)
	}()
	return c, nil
}

func (c *candidate) leads(e *env) error {
	select {
	case <-c.started:
		return nil
	case <-e.ctx.Done():
		return fmt.Errorf("%s never led", c.name)
	}
}

// twoCandidates lets the first lead, resign, and the second lead; then the second dies without a
// word and a third waits for its lease to end.
func twoCandidates(e *env) error {
	client, err := e.clientset()
	if err != nil {
		return err
	}
	broadcaster := record.NewBroadcaster(record.WithContext(e.ctx))
	broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: client.CoreV1().Events(namespace)})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "election"})
	leaders := &diary{}
	first, err := e.stand(client, recorder, "first", true, leaders)
	if err != nil {
		return err
	}
	if err := first.leads(e); err != nil {
		return err
	}
	second, err := e.stand(client, recorder, "second", false, leaders)
	if err != nil {
		return err
	}
	holder := func() (string, int32, error) {
		lease, err := client.CoordinationV1().Leases(namespace).Get(e.ctx, "election", metav1.GetOptions{})
		if err != nil {
			return "", 0, err
		}
		if lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Nanosecond()%1000 != 0 {
			return "", 0, fmt.Errorf("the renewal has no microseconds: %v", lease.Spec.RenewTime)
		}
		return *lease.Spec.HolderIdentity, *lease.Spec.LeaseTransitions, nil
	}
	// The second watches the first renew, for as long as it takes to see a change.
	if err := e.until("the second knows the first", func() error {
		leaders.mu.Lock()
		defer leaders.mu.Unlock()
		for _, line := range leaders.lines {
			if line == "second sees first" {
				return nil
			}
		}
		return fmt.Errorf("%q", leaders.lines)
	}); err != nil {
		return err
	}
	name, transitions, err := holder()
	if err := all(err, want("the holder", name, "first"), want("transitions", transitions, 0)); err != nil {
		return err
	}
	select {
	case <-second.started:
		return errors.New("two lead")
	default:
	}
	first.cancel()
	<-first.done
	if err := second.leads(e); err != nil {
		return err
	}
	name, transitions, err = holder()
	if err := all(err, want("the holder", name, "second"), want("transitions", transitions, 1)); err != nil {
		return err
	}
	// It does not release: the third has to wait until the lease runs out.
	second.cancel()
	<-second.done
	third, err := e.stand(client, recorder, "third", true, leaders)
	if err != nil {
		return err
	}
	defer third.cancel()
	if err := third.leads(e); err != nil {
		return err
	}
	return e.until("the events", func() error {
		list, err := client.CoreV1().Events(namespace).List(e.ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Lease,reason=LeaderElection"})
		if err != nil {
			return err
		}
		told := map[string]bool{}
		for _, event := range list.Items {
			told[event.Message] = true
		}
		for _, message := range []string{"first became leader", "first stopped leading", "second became leader", "third became leader"} {
			if !told[message] {
				return fmt.Errorf("%q is not among %v", message, told)
			}
		}
		return nil
	})
}
