package main

import (
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsapply "k8s.io/client-go/applyconfigurations/apps/v1"
	autoscalingapply "k8s.io/client-go/applyconfigurations/autoscaling/v1"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/util/retry"
)

func init() {
	checks["apply"] = typedApply
	checks["retry-on-conflict"] = countersAgree
}

// typedApply lets two managers share a Deployment through typed configurations.
func typedApply(e *env) error {
	client, err := e.clientset()
	if err != nil {
		return err
	}
	web := client.AppsV1().Deployments(namespace)
	labels := map[string]string{"app": "web"}
	container := func() *coreapply.ContainerApplyConfiguration {
		return coreapply.Container().WithName("main").WithImage("example.invalid/app:1")
	}
	deployment := func(containers ...*coreapply.ContainerApplyConfiguration) *appsapply.DeploymentApplyConfiguration {
		return appsapply.Deployment("web", namespace).WithSpec(appsapply.DeploymentSpec().
			WithSelector(metaapply.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(coreapply.PodTemplateSpec().WithLabels(labels).WithSpec(coreapply.PodSpec().WithContainers(containers...))))
	}
	mine := metav1.ApplyOptions{FieldManager: "mine"}
	made, err := web.Apply(e.ctx, deployment(container().WithPorts(
		coreapply.ContainerPort().WithContainerPort(80).WithName("http"),
		coreapply.ContainerPort().WithContainerPort(443).WithName("https")),
	).WithAnnotations(map[string]string{"note": "mine"}), mine)
	if err != nil {
		return fmt.Errorf("the first apply: %w", err)
	}
	if err := want("ports", len(made.Spec.Template.Spec.Containers[0].Ports), 2); err != nil {
		return err
	}
	again, err := web.Apply(e.ctx, deployment(container().WithPorts(
		coreapply.ContainerPort().WithContainerPort(443).WithName("https")),
	), mine)
	if err != nil {
		return fmt.Errorf("the second apply: %w", err)
	}
	ports := again.Spec.Template.Spec.Containers[0].Ports
	err = all(
		want("ports left", len(ports), 1),
		want("the port", ports[0].ContainerPort, 443),
		want("annotations left", again.Annotations["note"], ""),
	)
	if err != nil {
		return err
	}
	others := metav1.ApplyOptions{FieldManager: "other"}
	theirs := deployment(container().WithImage("example.invalid/app:2"), coreapply.Container().WithName("side").WithImage("example.invalid/side:1"))
	_, err = web.Apply(e.ctx, theirs, others)
	const field = `.spec.template.spec.containers[name="main"].image`
	if !apierrors.IsConflict(err) || err.Error() != `Apply failed with 1 conflict: conflict with "mine": `+field {
		return fmt.Errorf("a conflict: %v", err)
	}
	cause, found := apierrors.StatusCause(err, metav1.CauseTypeFieldManagerConflict)
	if err := all(want("it has a cause", found, true), want("the field", cause.Field, field), want("the words", cause.Message, `conflict with "mine"`)); err != nil {
		return err
	}
	others.Force = true
	forced, err := web.Apply(e.ctx, theirs, others)
	if err != nil {
		return fmt.Errorf("a forced apply: %w", err)
	}
	containers := forced.Spec.Template.Spec.Containers
	if err := all(want("containers", len(containers), 2), want("the image", containers[0].Image, "example.invalid/app:2"), want("a port that is mine", len(containers[0].Ports), 1)); err != nil {
		return err
	}
	extracted, err := appsapply.ExtractDeployment(forced, "mine")
	if err != nil {
		return fmt.Errorf("extract: %w", err)
	}
	left := extracted.Spec.Template.Spec.Containers
	if len(left) != 1 || left[0].Image != nil || len(left[0].Ports) != 1 {
		return fmt.Errorf("what is mine still: %+v", left)
	}
	// What the other one no longer applies goes; what both hold stays.
	others.Force = false
	reduced, err := web.Apply(e.ctx, deployment(container().WithImage("example.invalid/app:2")), others)
	if err != nil {
		return fmt.Errorf("an apply of less: %w", err)
	}
	if err := want("containers left", len(reduced.Spec.Template.Spec.Containers), 1); err != nil {
		return err
	}
	scaled, err := web.ApplyScale(e.ctx, "web", autoscalingapply.Scale().WithSpec(autoscalingapply.ScaleSpec().WithReplicas(4)), metav1.ApplyOptions{FieldManager: "scaler", Force: true})
	if err != nil {
		return fmt.Errorf("apply the scale: %w", err)
	}
	if err := want("replicas", scaled.Spec.Replicas, 4); err != nil {
		return err
	}
	_, err = web.Apply(e.ctx, deployment(container().WithImage("example.invalid/app:2")).WithSpec(appsapply.DeploymentSpec().WithReplicas(1)), metav1.ApplyOptions{FieldManager: "late"})
	if !apierrors.IsConflict(err) {
		return fmt.Errorf("the scaler's replicas: %v", err)
	}

	service := coreapply.Service("web", namespace).WithSpec(coreapply.ServiceSpec().WithSelector(labels).WithPorts(
		coreapply.ServicePort().WithPort(80).WithTargetPort(intstr.FromString("http")),
		coreapply.ServicePort().WithPort(53).WithName("dns"),
	))
	// A list keyed by port and protocol, of which the protocol is a default.
	service.Spec.Ports[0].WithName("http")
	if _, err := client.CoreV1().Services(namespace).Apply(e.ctx, service, mine); err != nil {
		return fmt.Errorf("apply a Service: %w", err)
	}
	first, err := client.CoreV1().Services(namespace).Get(e.ctx, "web", metav1.GetOptions{})
	if err != nil {
		return err
	}
	second, err := client.CoreV1().Services(namespace).Apply(e.ctx, service, mine)
	if err != nil {
		return fmt.Errorf("apply the Service again: %w", err)
	}
	return want("an apply that changes nothing writes nothing", second.ResourceVersion, first.ResourceVersion)
}

// countersAgree adds to one number from many sides; none may get lost.
func countersAgree(e *env) error {
	const workers, rounds = 8, 10
	client, err := e.clientset()
	if err != nil {
		return err
	}
	maps := client.CoreV1().ConfigMaps(namespace)
	if _, err := maps.Create(e.ctx, configMap("counter", map[string]string{"n": "0"}), metav1.CreateOptions{}); err != nil {
		return err
	}
	var wg sync.WaitGroup
	failures := make(chan error, workers)
	backoff := retry.DefaultBackoff
	backoff.Steps = 1000
	for range workers {
		wg.Go(func() {
			for range rounds {
				err := retry.RetryOnConflict(backoff, func() error {
					current, err := maps.Get(e.ctx, "counter", metav1.GetOptions{})
					if err != nil {
						return err
					}
					var n int
					if _, err := fmt.Sscan(current.Data["n"], &n); err != nil {
						return err
					}
					current.Data["n"] = fmt.Sprint(n + 1)
					_, err = maps.Update(e.ctx, current, metav1.UpdateOptions{})
					return err
				})
				if err != nil {
					failures <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failures)
	if err := <-failures; err != nil {
		return err
	}
	counter, err := maps.Get(e.ctx, "counter", metav1.GetOptions{})
	if err != nil {
		return err
	}
	return want("the count", counter.Data["n"], fmt.Sprint(workers*rounds))
}
