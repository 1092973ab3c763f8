package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
)

func init() {
	checks["dynamic"] = dynamicClient
	checks["dynamic-informer"] = dynamicInformer
	checks["metadata"] = metadataClient
	checks["discovery"] = discoveryAndMapper
	checks["scale"] = scaleClient
}

var (
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	podsOf      = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

// untypedDeployment has two replicas of a pod that nobody runs.
func untypedDeployment(name string) *unstructured.Unstructured {
	labels := map[string]any{"app": name}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"replicas": int64(2),
			"selector": map[string]any{"matchLabels": labels},
			"template": map[string]any{
				"metadata": map[string]any{"labels": labels},
				"spec":     map[string]any{"containers": []any{map[string]any{"name": "main", "image": "example.invalid/app:1"}}},
			},
		},
	}}
}

// dynamicClient takes an object it has no type for through all verbs and all four patches.
func dynamicClient(e *env) error {
	client, err := dynamic.NewForConfig(e.config)
	if err != nil {
		return err
	}
	web := client.Resource(deployments).Namespace(namespace)
	made, err := web.Create(e.ctx, untypedDeployment("web"), metav1.CreateOptions{FieldManager: "maker", FieldValidation: "Strict"})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	strategy, _, _ := unstructured.NestedString(made.Object, "spec", "strategy", "type")
	if err := want("a default", strategy, "RollingUpdate"); err != nil {
		return err
	}
	patches := []struct {
		kind types.PatchType
		body string
		path []string
		want string
	}{
		{types.JSONPatchType, `[{"op":"test","path":"/spec/replicas","value":2},{"op":"add","path":"/metadata/annotations","value":{"a":"1"}}]`, []string{"metadata", "annotations", "a"}, "1"},
		{types.MergePatchType, `{"metadata":{"annotations":{"a":null,"b":"2"}}}`, []string{"metadata", "annotations", "b"}, "2"},
		{types.StrategicMergePatchType, `{"metadata":{"labels":{"c":"3"}}}`, []string{"metadata", "labels", "c"}, "3"},
	}
	for _, patch := range patches {
		patched, err := web.Patch(e.ctx, "web", patch.kind, []byte(patch.body), metav1.PatchOptions{})
		if err != nil {
			return fmt.Errorf("%s: %w", patch.kind, err)
		}
		got, _, _ := unstructured.NestedString(patched.Object, patch.path...)
		if err := want(string(patch.kind), got, patch.want); err != nil {
			return err
		}
	}
	configuration := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "web"},
		"spec": map[string]any{"replicas": int64(3)},
	}}
	_, err = web.Apply(e.ctx, "web", configuration, metav1.ApplyOptions{FieldManager: "scaler"})
	// Who took a field with another verb than apply is named with the version.
	const conflict = `Apply failed with 1 conflict: conflict with "maker" using apps/v1: .spec.replicas`
	if !apierrors.IsConflict(err) || err.Error() != conflict {
		return fmt.Errorf("a conflict: %v", err)
	}
	applied, err := web.Apply(e.ctx, "web", configuration, metav1.ApplyOptions{FieldManager: "scaler", Force: true})
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	replicas, _, _ := unstructured.NestedInt64(applied.Object, "spec", "replicas")
	if err := want("replicas", replicas, 3); err != nil {
		return err
	}
	status := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "web"},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Checked", "status": "True"}}},
	}}
	applied, err = web.ApplyStatus(e.ctx, "web", status, metav1.ApplyOptions{FieldManager: "checker"})
	if err != nil {
		return fmt.Errorf("apply the status: %w", err)
	}
	conditions, _, _ := unstructured.NestedSlice(applied.Object, "status", "conditions")
	found := false
	for _, condition := range conditions {
		found = found || condition.(map[string]any)["type"] == "Checked"
	}
	subresource := ""
	for _, entry := range applied.GetManagedFields() {
		if entry.Manager == "checker" {
			subresource = entry.Subresource
		}
	}
	if err := all(want("the condition is there", found, true), want("its subresource", subresource, "status")); err != nil {
		return err
	}
	other := untypedDeployment("other")
	if _, err := web.Create(e.ctx, other, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		return fmt.Errorf("dry run: %w", err)
	}
	list, err := client.Resource(deployments).List(e.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if err := all(want("items", len(list.Items), 1), want("the list's kind", list.GetKind(), "DeploymentList"), want("the item's kind", list.Items[0].GetKind(), "Deployment")); err != nil {
		return err
	}
	other.Object["spec"].(map[string]any)["replica"] = int64(1)
	_, err = web.Create(e.ctx, other, metav1.CreateOptions{FieldValidation: "Strict"})
	const strict = `Deployment in version "v1" cannot be handled as a Deployment: strict decoding error: unknown field "spec.replica"`
	if !apierrors.IsBadRequest(err) || err.Error() != strict {
		return fmt.Errorf("a typo: %v", err)
	}
	foreground := metav1.DeletePropagationForeground
	if err := web.Delete(e.ctx, "web", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		return err
	}
	return e.until("the Deployment is gone", func() error {
		_, err := web.Get(e.ctx, "web", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is still there: %v", err)
	})
}

// dynamicInformer follows a resource by its name alone.
func dynamicInformer(e *env) error {
	client, err := dynamic.NewForConfig(e.config)
	if err != nil {
		return err
	}
	web := client.Resource(deployments).Namespace(namespace)
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, namespace, nil)
	informer := factory.ForResource(deployments)
	seen := &diary{}
	// The controller writes the status as often as it likes: updates are not counted.
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { seen.write("add %s", object.(metav1.Object).GetName()) },
		DeleteFunc: func(object any) { seen.write("delete %s", object.(metav1.Object).GetName()) },
	}
	if _, err := informer.Informer().AddEventHandler(handler); err != nil {
		return err
	}
	factory.Start(e.ctx.Done())
	factory.WaitForCacheSync(e.ctx.Done())
	if _, err := web.Create(e.ctx, untypedDeployment("web"), metav1.CreateOptions{}); err != nil {
		return err
	}
	err = e.until("the cache has it", func() error {
		objects, err := informer.Lister().ByNamespace(namespace).List(labels.Everything())
		if err != nil {
			return err
		}
		return want("objects", len(objects), 1)
	})
	if err != nil {
		return err
	}
	if err := web.Delete(e.ctx, "web", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return all(
		seen.reads(e, "add web", "delete web"),
		e.traffic.some("a streaming list", func(x exchange) bool { return x.isStreamingList() && strings.HasSuffix(x.path, "/deployments") }),
	)
}

// metadataClient reads and writes objects of which it knows the metadata only.
func metadataClient(e *env) error {
	client, err := metadata.NewForConfig(e.config)
	if err != nil {
		return err
	}
	typed, err := e.clientset()
	if err != nil {
		return err
	}
	for n := range 3 {
		object := configMap(fmt.Sprint("m", n), map[string]string{"k": strings.Repeat("x", 1000)})
		object.Labels = map[string]string{"check": "metadata"}
		if _, err := typed.CoreV1().ConfigMaps(namespace).Create(e.ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	e.traffic.forget()
	maps := client.Resource(configMaps).Namespace(namespace)
	list, err := maps.List(e.ctx, metav1.ListOptions{LabelSelector: "check=metadata", Limit: 2})
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	err = all(want("items", len(list.Items), 2), want("a name", list.Items[0].Name, "m0"), want("more", list.Continue != "", true))
	if err != nil {
		return err
	}
	one, err := maps.Get(e.ctx, "m0", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	if err := want("a label", one.Labels["check"], "metadata"); err != nil {
		return err
	}
	patched, err := maps.Patch(e.ctx, "m0", types.MergePatchType, []byte(`{"metadata":{"labels":{"more":"1"}}}`), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("patch: %w", err)
	}
	if err := want("the new label", patched.Labels["more"], "1"); err != nil {
		return err
	}
	full, err := typed.CoreV1().ConfigMaps(namespace).Get(e.ctx, "m0", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := want("the data is untouched", len(full.Data["k"]), 1000); err != nil {
		return err
	}
	factory := metadatainformer.NewFilteredSharedInformerFactory(client, 0, namespace, func(options *metav1.ListOptions) {
		options.LabelSelector = "check=metadata"
	})
	informer, seen := factory.ForResource(configMaps), &diary{}
	if _, err := informer.Informer().AddEventHandler(seen.handler()); err != nil {
		return err
	}
	factory.Start(e.ctx.Done())
	factory.WaitForCacheSync(e.ctx.Done())
	if err := seen.reads(e, "had m0", "had m1", "had m2"); err != nil {
		return err
	}
	if err := maps.Delete(e.ctx, "m1", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return all(
		seen.reads(e, "had m0", "had m1", "had m2", "delete m1"),
		e.traffic.none("metadata that is not protobuf", func(x exchange) bool {
			return x.method == http.MethodGet && strings.Contains(x.path, "/configmaps") && x.query.Get("labelSelector") != "" && !strings.HasPrefix(x.got, protobuf)
		}),
	)
}

// discoveryAndMapper finds out what the server has, in as few requests as client-go can.
func discoveryAndMapper(e *env) error {
	client, err := discovery.NewDiscoveryClientForConfig(e.config)
	if err != nil {
		return err
	}
	e.traffic.forget()
	groups, resources, err := client.ServerGroupsAndResources()
	if err != nil {
		return err
	}
	asked := e.traffic.matching(func(exchange) bool { return true })
	for _, x := range asked {
		if x.path != "/api" && x.path != "/apis" {
			return fmt.Errorf("aggregated discovery asks twice, this was more: %v", x)
		}
	}
	if len(groups) < 10 || groups[0].Name != "" {
		return fmt.Errorf("groups: %v", groups)
	}
	kinds := map[string]metav1.APIResource{}
	for _, list := range resources {
		for _, resource := range list.APIResources {
			kinds[list.GroupVersion+"/"+resource.Name] = resource
		}
	}
	pods := kinds["v1/pods"]
	err = all(
		want("pods", pods.Kind, "Pod"),
		want("its verbs", fmt.Sprint(pods.Verbs), "[create delete deletecollection get list patch update watch]"),
		want("its names", fmt.Sprint(pods.SingularName, pods.ShortNames, pods.Categories), "pod[po] [all]"),
		want("a scale", kinds["apps/v1/deployments/scale"].Kind, "Scale"),
		want("its group", kinds["apps/v1/deployments/scale"].Group, "autoscaling"),
	)
	if err != nil {
		return err
	}
	// The older documents say more of a resource.
	core, err := client.ServerResourcesForGroupVersion("v1")
	if err != nil {
		return err
	}
	hash := ""
	for _, resource := range core.APIResources {
		if resource.Name == "pods" {
			hash = resource.StorageVersionHash
		}
	}
	if err := want("the hash of pods", hash, "xPOwRZ+Yhw8="); err != nil {
		return err
	}
	cached := memory.NewMemCacheClient(client)
	mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, nil)
	for partial, full := range map[string]string{"po": "pods", "deploy": "deployments", "cm": "configmaps", "svc": "services", "sa": "serviceaccounts", "ev": "events"} {
		found, err := mapper.ResourceFor(schema.GroupVersionResource{Resource: partial})
		if err != nil {
			return fmt.Errorf("%s: %w", partial, err)
		}
		if err := want(partial, found.Resource, full); err != nil {
			return err
		}
	}
	mapping, err := mapper.RESTMapping(schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"})
	if err != nil {
		return err
	}
	_, unknown := mapper.RESTMapping(schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "Nonsense"})
	err = all(
		want("the scope", mapping.Scope.Name(), meta.RESTScopeNameRoot),
		want("the version", mapping.GroupVersionKind.Version, "v1"),
		want("what is not there", meta.IsNoMatchError(unknown), true),
	)
	if err != nil {
		return err
	}
	version, err := client.ServerVersion()
	if err != nil {
		return err
	}
	if err := all(want("major", version.Major, "1"), want("minor", version.Minor, "37")); err != nil {
		return err
	}
	document, err := client.OpenAPISchema()
	if err != nil {
		return fmt.Errorf("OpenAPI v2 as protobuf: %w", err)
	}
	if err := want("there are definitions", len(document.GetDefinitions().GetAdditionalProperties()) > 100, true); err != nil {
		return err
	}
	paths, err := client.OpenAPIV3().Paths()
	if err != nil {
		return fmt.Errorf("OpenAPI v3: %w", err)
	}
	apps, known := paths["apis/apps/v1"]
	if !known || !strings.Contains(apps.ServerRelativeURL(), "hash=") {
		return fmt.Errorf("OpenAPI v3 of apps/v1: %v", apps)
	}
	for _, kind := range []string{"application/json", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"} {
		text, err := apps.Schema(kind)
		if err != nil {
			return fmt.Errorf("OpenAPI v3 as %s: %w", kind, err)
		}
		if !strings.Contains(string(text), "io.k8s.api.apps.v1.Deployment") {
			return fmt.Errorf("OpenAPI v3 as %s does not name Deployment", kind)
		}
	}
	return nil
}

// scaleClient scales what it knows from discovery only.
func scaleClient(e *env) error {
	untyped, err := dynamic.NewForConfig(e.config)
	if err != nil {
		return err
	}
	if _, err := untyped.Resource(deployments).Namespace(namespace).Create(e.ctx, untypedDeployment("web"), metav1.CreateOptions{}); err != nil {
		return err
	}
	client, err := discovery.NewDiscoveryClientForConfig(e.config)
	if err != nil {
		return err
	}
	cached := memory.NewMemCacheClient(client)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cached)
	scales, err := scale.NewForConfig(e.config, mapper, dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(client))
	if err != nil {
		return err
	}
	of := scales.Scales(namespace)
	read, err := of.Get(e.ctx, deployments.GroupResource(), "web", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := all(want("replicas", read.Spec.Replicas, 2), want("the selector", read.Status.Selector, "app=web")); err != nil {
		return err
	}
	// The controller writes beside us.
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		current, err := of.Get(e.ctx, deployments.GroupResource(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		current.Spec.Replicas = 5
		_, err = of.Update(e.ctx, deployments.GroupResource(), current, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	if _, err := of.Update(e.ctx, deployments.GroupResource(), read, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		return fmt.Errorf("a stale scale: %v", err)
	}
	patched, err := of.Patch(e.ctx, deployments, "web", types.MergePatchType, []byte(`{"spec":{"replicas":1}}`), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	if err := want("replicas", patched.Spec.Replicas, 1); err != nil {
		return err
	}
	_, err = of.Get(e.ctx, podsOf.GroupResource(), "web", metav1.GetOptions{})
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("a pod has no scale: %v", err)
	}
	return nil
}
