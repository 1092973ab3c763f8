package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

func init() {
	checks["informers-streaming"] = func(e *env) error { return informersFollow(e, true) }
	checks["informers-listing"] = func(e *env) error { return informersFollow(e, false) }
	checks["informers-every-kind"] = informersOfEveryKind
	checks["informers-selectors"] = informersSeeObjectsLeave
	checks["workqueue"] = aControllerReconciles
}

// diary is what an informer's handler was told.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) write(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diary) handler() cache.ResourceEventHandler {
	name := func(object any) string {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			return "unknown " + gone.Key
		}
		return object.(metav1.Object).GetName()
	}
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, initial bool) {
			if initial {
				d.write("had %s", name(object))
			} else {
				d.write("add %s", name(object))
			}
		},
		UpdateFunc: func(_, object any) { d.write("update %s", name(object)) },
		DeleteFunc: func(object any) { d.write("delete %s", name(object)) },
	}
}

// reads waits for exactly these lines; what was there before comes in any order.
func (d *diary) reads(e *env, lines ...string) error {
	return e.until("the handler's calls", func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		got := slices.Clone(d.lines)
		initial := slices.IndexFunc(got, func(line string) bool { return !strings.HasPrefix(line, "had ") })
		if initial < 0 {
			initial = len(got)
		}
		slices.Sort(got[:initial])
		if !slices.Equal(got, lines) {
			return fmt.Errorf("got %q, want %q", got, lines)
		}
		return nil
	})
}

// informersFollow starts a shared informer over objects that exist and changes them.
func informersFollow(e *env, streaming bool) error {
	if enabled := clientfeatures.FeatureGates().Enabled(clientfeatures.WatchListClient); enabled != streaming {
		return fmt.Errorf("KUBE_FEATURE_WatchListClient is %v", enabled)
	}
	client, err := e.clientset()
	if err != nil {
		return err
	}
	maps := client.CoreV1().ConfigMaps(namespace)
	owned := metav1.ListOptions{LabelSelector: "check=informers"}
	labelled := func(name string) *corev1.ConfigMap {
		object := configMap(name, map[string]string{"k": "1"})
		object.Labels = map[string]string{"check": "informers"}
		return object
	}
	if _, err := maps.Create(e.ctx, labelled("before"), metav1.CreateOptions{}); err != nil {
		return err
	}
	e.traffic.forget()
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = owned.LabelSelector }))
	informer := factory.Core().V1().ConfigMaps()
	seen := &diary{}
	if _, err := informer.Informer().AddEventHandler(seen.handler()); err != nil {
		return err
	}
	factory.StartWithContext(e.ctx)
	if !cache.WaitForCacheSync(e.ctx.Done(), informer.Informer().HasSynced) {
		return errors.New("the cache is not in sync")
	}
	if err := seen.reads(e, "had before"); err != nil {
		return err
	}
	after, err := maps.Create(e.ctx, labelled("after"), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	after.Data["k"] = "2"
	if _, err := maps.Update(e.ctx, after, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if err := maps.DeleteCollection(e.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: owned.LabelSelector, FieldSelector: "metadata.name=before"}); err != nil {
		return err
	}
	if err := seen.reads(e, "had before", "add after", "update after", "delete before"); err != nil {
		return err
	}
	cached, err := informer.Lister().ConfigMaps(namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	if len(cached) != 1 || cached[0].Name != "after" || cached[0].Data["k"] != "2" {
		return fmt.Errorf("the lister gives %v", cached)
	}
	listed := func(x exchange) bool { return x.isList("configmaps") }
	streamed := func(x exchange) bool { return x.isStreamingList() && x.code == 200 }
	if streaming {
		return all(e.traffic.some("a streaming list", streamed), e.traffic.none("it fell back to a list", listed))
	}
	return all(e.traffic.some("a list", listed), e.traffic.none("a streaming list", streamed))
}

// informersOfEveryKind starts one informer for each kind a controller manager would, in protobuf,
// and waits until all are in sync.
func informersOfEveryKind(e *env) error {
	config := rest.CopyConfig(e.config)
	config.ContentType, config.AcceptContentTypes = protobuf, protobuf+",application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Pods(namespace).Create(e.ctx, fullPod("watched"), metav1.CreateOptions{}); err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, time.Hour)
	core, apps, rbac := factory.Core().V1(), factory.Apps().V1(), factory.Rbac().V1()
	synced := map[string]cache.SharedIndexInformer{
		"configmaps": core.ConfigMaps().Informer(), "endpoints": core.Endpoints().Informer(), "events": core.Events().Informer(),
		"namespaces": core.Namespaces().Informer(), "nodes": core.Nodes().Informer(), "pods": core.Pods().Informer(),
		"secrets": core.Secrets().Informer(), "serviceaccounts": core.ServiceAccounts().Informer(), "services": core.Services().Informer(),
		"deployments": apps.Deployments().Informer(), "replicasets": apps.ReplicaSets().Informer(),
		"leases": factory.Coordination().V1().Leases().Informer(), "endpointslices": factory.Discovery().V1().EndpointSlices().Informer(),
		"events.events.k8s.io": factory.Events().V1().Events().Informer(),
		"ipaddresses":          factory.Networking().V1().IPAddresses().Informer(), "servicecidrs": factory.Networking().V1().ServiceCIDRs().Informer(),
		"clusterroles": rbac.ClusterRoles().Informer(), "clusterrolebindings": rbac.ClusterRoleBindings().Informer(),
		"roles": rbac.Roles().Informer(), "rolebindings": rbac.RoleBindings().Informer(),
		"priorityclasses": factory.Scheduling().V1().PriorityClasses().Informer(),
	}
	e.traffic.forget()
	factory.StartWithContext(e.ctx)
	for name, informer := range synced {
		if err := e.until(name, func() error { return want("in sync", informer.HasSynced(), true) }); err != nil {
			return err
		}
	}
	for name, least := range map[string]int{"namespaces": 4, "pods": 1, "clusterroles": 50, "serviceaccounts": 1, "services": 1} {
		if count := len(synced[name].GetStore().List()); count < least {
			return fmt.Errorf("%s: %d are cached, at least %d exist", name, count, least)
		}
	}
	return all(
		e.traffic.none("a list where a stream was asked for", func(x exchange) bool { return x.method == "GET" && !x.isWatch() }),
		e.traffic.none("a watch that is not protobuf", func(x exchange) bool { return x.isWatch() && x.got != protobuf+";stream=watch" }),
	)
}

// informersSeeObjectsLeave changes labels and fields so that objects enter and leave selectors.
func informersSeeObjectsLeave(e *env) error {
	client, err := e.clientset()
	if err != nil {
		return err
	}
	pods := client.CoreV1().Pods(namespace)
	if _, err := pods.Create(e.ctx, pod("roamer"), metav1.CreateOptions{}); err != nil {
		return err
	}
	follow := func(tweak func(*metav1.ListOptions)) *diary {
		factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace), informers.WithTweakListOptions(tweak))
		informer, seen := factory.Core().V1().Pods().Informer(), &diary{}
		_, _ = informer.AddEventHandler(seen.handler())
		factory.StartWithContext(e.ctx)
		cache.WaitForCacheSync(e.ctx.Done(), informer.HasSynced)
		return seen
	}
	byLabel := follow(func(options *metav1.ListOptions) { options.LabelSelector = "tier in (gold,silver),!old" })
	byField := follow(func(options *metav1.ListOptions) { options.FieldSelector = "status.phase!=Pending" })
	for _, labels := range []string{`{"tier":"gold"}`, `{"tier":"silver"}`, `{"old":""}`, `{"old":null}`, `{"tier":null}`} {
		patch := []byte(`{"metadata":{"labels":` + labels + `}}`)
		if _, err := pods.Patch(e.ctx, "roamer", types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	for _, phase := range []string{"Running", "Pending", "Failed"} {
		patch := []byte(`{"status":{"phase":"` + phase + `"}}`)
		if _, err := pods.Patch(e.ctx, "roamer", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return err
		}
	}
	return all(
		byLabel.reads(e, "add roamer", "update roamer", "delete roamer", "add roamer", "delete roamer"),
		byField.reads(e, "add roamer", "delete roamer", "add roamer"),
	)
}

// aControllerReconciles runs workers over a rate limited queue: every source is copied, failures
// are tried again, and each copy is owned by its source.
func aControllerReconciles(e *env) error {
	const sources = 20
	client, err := e.clientset()
	if err != nil {
		return err
	}
	maps := client.CoreV1().ConfigMaps(namespace)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().ConfigMaps()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Millisecond, time.Second))
	defer queue.ShutDown()
	enqueue := func(object any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
			queue.Add(key)
		}
	}
	_, err = informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue, UpdateFunc: func(_, object any) { enqueue(object) }, DeleteFunc: enqueue,
	})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	failed := map[string]bool{}
	reconcile := func(key string) error {
		_, name, err := cache.SplitMetaNamespaceKey(key)
		if err != nil {
			return err
		}
		source, err := informer.Lister().ConfigMaps(namespace).Get(name)
		if err != nil || source.Labels["role"] != "source" {
			return nil
		}
		mu.Lock()
		first := !failed[name]
		failed[name] = true
		mu.Unlock()
		if first {
			return errors.New("the first try fails")
		}
		copied := configMap(name+"-copy", source.Data)
		copied.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(source, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
		_, err = maps.Create(e.ctx, copied, metav1.CreateOptions{})
		return err
	}
	factory.StartWithContext(e.ctx)
	factory.WaitForCacheSync(e.ctx.Done())
	for range 4 {
		go wait.Until(func() {
			for {
				key, stop := queue.Get()
				if stop {
					return
				}
				if reconcile(key) != nil && queue.NumRequeues(key) < 3 {
					queue.AddRateLimited(key)
				} else {
					queue.Forget(key)
				}
				queue.Done(key)
			}
		}, time.Second, e.ctx.Done())
	}
	for n := range sources {
		source := configMap(fmt.Sprintf("source-%02d", n), map[string]string{"n": fmt.Sprint(n)})
		source.Labels = map[string]string{"role": "source"}
		if _, err := maps.Create(e.ctx, source, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	copies := func(expected int) error {
		return e.until(fmt.Sprint(expected, " copies"), func() error {
			list, err := maps.List(e.ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			count := 0
			for _, item := range list.Items {
				if metav1.GetControllerOf(&item) != nil {
					count++
				}
			}
			return want("copies", count, expected)
		})
	}
	if err := copies(sources); err != nil {
		return err
	}
	// What is owned goes with its owner.
	if err := maps.DeleteCollection(e.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "role=source"}); err != nil {
		return err
	}
	return copies(0)
}
