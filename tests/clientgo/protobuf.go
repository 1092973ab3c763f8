package main

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const protobuf = "application/vnd.kubernetes.protobuf"

func init() {
	checks["protobuf"] = speaksProtobufOnly
}

// speaksProtobufOnly lets a client that takes nothing else do everything, and sees that nothing
// else was sent or answered: objects, lists, watches and failures.
func speaksProtobufOnly(e *env) error {
	config := rest.CopyConfig(e.config)
	config.ContentType, config.AcceptContentTypes = protobuf, protobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	e.traffic.forget()
	maps, pods := client.CoreV1().ConfigMaps(namespace), client.CoreV1().Pods(namespace)

	watcher, err := maps.Watch(e.ctx, metav1.ListOptions{LabelSelector: "of=protobuf"})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer watcher.Stop()

	labelled := configMap("p", map[string]string{"k": "v", "u": "ü\u2028"})
	labelled.Labels = map[string]string{"of": "protobuf"}
	labelled.BinaryData = map[string][]byte{"b": {0, 255, 1}}
	made, err := maps.Create(e.ctx, labelled, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	err = all(
		want("data", made.Data["u"], "ü\u2028"),
		want("binary data", string(made.BinaryData["b"]), "\x00\xff\x01"),
		want("managers", len(made.ManagedFields), 1),
	)
	if err != nil {
		return err
	}
	if made.CreationTimestamp.IsZero() || made.UID == "" || made.ResourceVersion == "" {
		return fmt.Errorf("metadata is missing: %+v", made.ObjectMeta)
	}
	made.Data["k"] = "w"
	updated, err := maps.Update(e.ctx, made, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("update: %w", err)
	}
	patched, err := maps.Patch(e.ctx, "p", types.MergePatchType, []byte(`{"data":{"k":"x"}}`), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("patch: %w", err)
	}
	if patched.ResourceVersion == updated.ResourceVersion {
		return errors.New("the patch changed nothing")
	}

	whole := fullPod("full")
	created, err := pods.Create(e.ctx, whole, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a pod: %w", err)
	}
	read, err := pods.Get(e.ctx, "full", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get the pod: %w", err)
	}
	if read.String() != created.String() {
		return fmt.Errorf("what was answered is not what is stored:\n%v\n%v", created, read)
	}
	limit := read.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory]
	err = all(
		want("a quantity", limit.String(), "1536Mi"),
		want("a port by name", read.Spec.Containers[0].ReadinessProbe.HTTPGet.Port.String(), "http"),
		want("a defaulted field", read.Spec.RestartPolicy, corev1.RestartPolicyAlways),
		want("a pointer to false", *read.Spec.AutomountServiceAccountToken, false),
	)
	if err != nil {
		return err
	}
	read.Status.Phase = corev1.PodRunning
	started := metav1.Now().Rfc3339Copy()
	read.Status.StartTime = &started
	status, err := pods.UpdateStatus(e.ctx, read, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("update the status: %w", err)
	}
	if !status.Status.StartTime.Equal(&started) {
		return fmt.Errorf("a time: %v is not %v", status.Status.StartTime, started)
	}

	list, err := maps.List(e.ctx, metav1.ListOptions{LabelSelector: "of=protobuf"})
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	if len(list.Items) != 1 || list.ResourceVersion == "" || list.Items[0].Name != "p" {
		return fmt.Errorf("list: %v", list)
	}
	_, err = maps.Get(e.ctx, "absent", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) || err.Error() != `configmaps "absent" not found` {
		return fmt.Errorf("a failure: %v", err)
	}
	_, err = pods.Create(e.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bad"}}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		return fmt.Errorf("an invalid pod: %v", err)
	}
	if err := maps.Delete(e.ctx, "p", *metav1.NewPreconditionDeleteOptions(string(made.UID))); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	for _, expected := range []watch.EventType{watch.Added, watch.Modified, watch.Modified, watch.Deleted} {
		select {
		case event := <-watcher.ResultChan():
			if event.Type != expected {
				return fmt.Errorf("the watch gave %s %v, not %s", event.Type, event.Object, expected)
			}
			if seen, ok := event.Object.(*corev1.ConfigMap); !ok || seen.Name != "p" {
				return fmt.Errorf("the watch gave %v", event.Object)
			}
		case <-e.ctx.Done():
			return fmt.Errorf("the watch gave no %s", expected)
		}
	}
	return all(
		e.traffic.none("answered in something else", func(x exchange) bool { return !strings.HasPrefix(x.got, protobuf) }),
		e.traffic.none("sent in something else", func(x exchange) bool {
			return (x.method == "POST" || x.method == "PUT") && x.sent != protobuf
		}),
		e.traffic.some("a watch in length-delimited frames", func(x exchange) bool {
			return x.isWatch() && x.got == protobuf+";stream=watch"
		}),
	)
}

// fullPod uses the types that protobuf writes in their own way.
func fullPod(name string) *corev1.Pod {
	full := pod(name)
	no, mode, period := false, int32(0o640), int64(0)
	full.Spec.AutomountServiceAccountToken = &no
	full.Spec.TerminationGracePeriodSeconds = &period
	full.Spec.NodeSelector = map[string]string{"a": "1", "b": "2"}
	full.Spec.Volumes = []corev1.Volume{{Name: "c", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "p"}, DefaultMode: &mode, Optional: &no,
		},
	}}}
	main := &full.Spec.Containers[0]
	main.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}
	main.Env = []corev1.EnvVar{{Name: "EMPTY"}, {Name: "CPU", ValueFrom: &corev1.EnvVarSource{
		ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu", Divisor: resource.MustParse("1m")},
	}}}
	main.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("0.1")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m"), corev1.ResourceMemory: resource.MustParse("1.5Gi")},
	}
	main.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromString("http")},
	}}
	main.VolumeMounts = []corev1.VolumeMount{{Name: "c", MountPath: "/c"}}
	return full
}
