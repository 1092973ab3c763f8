package main

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
)

const workers = 2

// controller makes a Deployment for every Site and tells in the Site's status how it goes.
type controller struct {
	kube        kubernetes.Interface
	sites       *sites
	siteIndex   cache.Indexer
	deployments appslisters.DeploymentLister
	synced      []cache.InformerSynced
	queue       workqueue.TypedRateLimitingInterface[cache.ObjectName]
	recorder    record.EventRecorder
}

func newController(kube kubernetes.Interface, sites *sites, siteInformer cache.SharedIndexInformer, factory informers.SharedInformerFactory, recorder record.EventRecorder) (*controller, error) {
	deployments := factory.Apps().V1().Deployments()
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](5*time.Millisecond, 2*time.Second)
	c := &controller{
		kube: kube, sites: sites, siteIndex: siteInformer.GetIndexer(), deployments: deployments.Lister(),
		synced:   []cache.InformerSynced{siteInformer.HasSynced, deployments.Informer().HasSynced},
		queue:    workqueue.NewTypedRateLimitingQueue(limiter),
		recorder: recorder,
	}
	if _, err := siteInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    c.enqueue,
		UpdateFunc: func(_, site any) { c.enqueue(site) },
	}); err != nil {
		return nil, err
	}
	_, err := deployments.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: c.enqueueOwner,
		UpdateFunc: func(old, updated any) {
			if old.(*appsv1.Deployment).ResourceVersion != updated.(*appsv1.Deployment).ResourceVersion {
				c.enqueueOwner(updated)
			}
		},
		DeleteFunc: c.enqueueOwner,
	})
	return c, err
}

func (c *controller) enqueue(site any) {
	name, err := cache.ObjectToName(site)
	if err != nil {
		utilruntime.HandleError(err)
		return
	}
	c.queue.Add(name)
}

// enqueueOwner enqueues the Site that controls what is given, if one does.
func (c *controller) enqueueOwner(given any) {
	if gone, isGone := given.(cache.DeletedFinalStateUnknown); isGone {
		given = gone.Obj
	}
	object, isObject := given.(metav1.Object)
	if !isObject {
		utilruntime.HandleError(fmt.Errorf("no object: %T", given))
		return
	}
	if owner := metav1.GetControllerOf(object); owner != nil && owner.Kind == "Site" {
		c.queue.Add(cache.NewObjectName(object.GetNamespace(), owner.Name))
	}
}

// run works until the context ends.
func (c *controller) run(ctx context.Context) error {
	defer utilruntime.HandleCrash()
	defer c.queue.ShutDown()
	if !cache.WaitForCacheSync(ctx.Done(), c.synced...) {
		return fmt.Errorf("the caches did not fill")
	}
	for range workers {
		go wait.UntilWithContext(ctx, func(ctx context.Context) {
			for c.next(ctx) {
			}
		}, time.Second)
	}
	<-ctx.Done()
	return nil
}

func (c *controller) next(ctx context.Context) bool {
	name, over := c.queue.Get()
	if over {
		return false
	}
	defer c.queue.Done(name)
	if err := c.sync(ctx, name); err != nil {
		utilruntime.HandleError(fmt.Errorf("%s: %w", name, err))
		c.queue.AddRateLimited(name)
		return true
	}
	c.queue.Forget(name)
	return true
}

func (c *controller) sync(ctx context.Context, name cache.ObjectName) error {
	found, exists, err := c.siteIndex.GetByKey(name.String())
	if err != nil || !exists {
		return err
	}
	site := found.(*Site)
	if site.DeletionTimestamp != nil {
		return nil
	}
	deployment, err := c.deployments.Deployments(site.Namespace).Get(site.Spec.DeploymentName)
	if errors.IsNotFound(err) {
		deployment, err = c.kube.AppsV1().Deployments(site.Namespace).Create(ctx, deploymentOf(site), metav1.CreateOptions{})
		if err == nil {
			c.recorder.Eventf(site, corev1.EventTypeNormal, "Created", "Created Deployment %s", deployment.Name)
		}
	}
	if err != nil {
		return err
	}
	if !metav1.IsControlledBy(deployment, site) {
		c.recorder.Eventf(site, corev1.EventTypeWarning, "ErrResourceExists", "Deployment %s is not managed by the Site", deployment.Name)
		return fmt.Errorf("deployment %s is not ours", deployment.Name)
	}
	wanted := deploymentOf(site)
	sameCount := site.Spec.Replicas != nil && deployment.Spec.Replicas != nil && *site.Spec.Replicas == *deployment.Spec.Replicas
	if !sameCount || deployment.Spec.Template.Spec.Containers[0].Image != site.Spec.Image {
		changed := deployment.DeepCopy()
		changed.Spec.Replicas = wanted.Spec.Replicas
		changed.Spec.Template.Spec.Containers[0].Image = site.Spec.Image
		if deployment, err = c.kube.AppsV1().Deployments(site.Namespace).Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return c.tell(ctx, site, deployment)
}

// tell writes the status, if it is another.
func (c *controller) tell(ctx context.Context, site *Site, deployment *appsv1.Deployment) error {
	told := site.DeepCopy()
	told.Status.ObservedGeneration = site.Generation
	told.Status.AvailableReplicas = deployment.Status.AvailableReplicas
	available := metav1.Condition{Type: "Available", Status: metav1.ConditionFalse, Reason: "Waiting", ObservedGeneration: site.Generation,
		Message: fmt.Sprintf("%d of %d replicas are available", deployment.Status.AvailableReplicas, *deployment.Spec.Replicas)}
	if deployment.Status.AvailableReplicas >= *deployment.Spec.Replicas {
		available.Status, available.Reason = metav1.ConditionTrue, "Enough"
	}
	meta.SetStatusCondition(&told.Status.Conditions, available)
	if equality.Semantic.DeepEqual(site.Status, told.Status) {
		return nil
	}
	_, err := c.sites.updateStatus(ctx, told)
	return err
}

func deploymentOf(site *Site) *appsv1.Deployment {
	labels := map[string]string{"app": "site", "site": site.Name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name: site.Spec.DeploymentName, Namespace: site.Namespace,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(site, groupVersion.WithKind("Site"))},
		},
		Spec: appsv1.DeploymentSpec{
			Replicas: site.Spec.Replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "server", Image: site.Spec.Image}}},
			},
		},
	}
}
