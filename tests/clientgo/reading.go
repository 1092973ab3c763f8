package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	watchtools "k8s.io/client-go/tools/watch"
)

func init() {
	checks["pager"] = pagesAddUp
	checks["retry-watcher"] = aWatchGoesOn
	checks["table"] = tables
}

// pagesAddUp reads a resource in pages while it changes: what the pager sees is one moment.
func pagesAddUp(e *env) error {
	const count, size = 110, 25
	client, err := e.clientset()
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Namespaces().Create(e.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "pages"}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	secrets := client.CoreV1().Secrets("pages")
	secret := func(name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	for n := range count {
		if _, err := secrets.Create(e.ctx, secret(fmt.Sprintf("page-%03d", n)), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	var version string
	pages := 0
	reader := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		list, err := secrets.List(ctx, options)
		if err != nil {
			return nil, err
		}
		pages++
		if version == "" {
			version = list.ResourceVersion
		}
		left, told := int64(max(count-pages*size, 0)), int64(0)
		if list.RemainingItemCount != nil {
			told = *list.RemainingItemCount
		}
		err = all(want("the moment", list.ResourceVersion, version), want("what is left", told, left), want("there is more", list.Continue != "", left > 0))
		if err != nil {
			return nil, fmt.Errorf("page %d: %w", pages, err)
		}
		// Neither may the new one show on a later page, nor may the old one be missing there.
		if _, err := secrets.Create(ctx, secret(fmt.Sprintf("page-999-%d", pages)), metav1.CreateOptions{}); err != nil {
			return nil, err
		}
		return list, secrets.Delete(ctx, fmt.Sprintf("page-%03d", count-pages), metav1.DeleteOptions{})
	})
	reader.PageSize, reader.PageBufferSize, reader.FullListIfExpired = size, 0, false
	seen := map[string]int{}
	err = reader.EachListItem(e.ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		seen[object.(*corev1.Secret).Name]++
		return nil
	})
	if err != nil {
		return err
	}
	for n := range count {
		if name := fmt.Sprintf("page-%03d", n); seen[name] != 1 {
			return fmt.Errorf("%s was seen %d times", name, seen[name])
		}
	}
	return all(want("objects", len(seen), count), want("pages", pages, 5))
}

// aWatchGoesOn lets the server end a watch every second: each change is still seen once.
func aWatchGoesOn(e *env) error {
	const changes = 60
	client, err := e.clientset()
	if err != nil {
		return err
	}
	maps := client.CoreV1().ConfigMaps(namespace)
	start, err := maps.Create(e.ctx, configMap("steady", map[string]string{"n": "0"}), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	e.traffic.forget()
	source := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		second := int64(1)
		options.TimeoutSeconds, options.FieldSelector = &second, "metadata.name=steady"
		return maps.Watch(ctx, options)
	}}
	watcher, err := watchtools.NewRetryWatcherWithContext(e.ctx, start.ResourceVersion, source)
	if err != nil {
		return err
	}
	defer watcher.Stop()
	// One change each time the last one was seen, and the last ones only after two restarts.
	restarts := func() int { return len(e.traffic.matching(exchange.isWatch)) }
	for n := 1; n <= changes || restarts() < 3; n++ {
		current, err := maps.Get(e.ctx, "steady", metav1.GetOptions{})
		if err != nil {
			return err
		}
		current.Data["n"] = strconv.Itoa(n)
		if _, err := maps.Update(e.ctx, current, metav1.UpdateOptions{}); err != nil {
			return err
		}
		select {
		case event := <-watcher.ResultChan():
			changed, ok := event.Object.(*corev1.ConfigMap)
			if !ok || event.Type != watch.Modified {
				return fmt.Errorf("the watch gave %s %v", event.Type, event.Object)
			}
			if err := want("the change", changed.Data["n"], strconv.Itoa(n)); err != nil {
				return err
			}
		case <-e.ctx.Done():
			return fmt.Errorf("change %d was not seen", n)
		}
	}
	if err := e.traffic.none("a watch that was refused", func(x exchange) bool { return x.isWatch() && x.code != 200 }); err != nil {
		return err
	}

	lists := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return maps.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return maps.Watch(ctx, options)
		},
	}
	wake := make(chan error, 1)
	ctx, cancel := watchtools.ContextWithOptionalTimeout(e.ctx, patience)
	defer cancel()
	go func() {
		_, err := maps.Create(e.ctx, configMap("awaited", nil), metav1.CreateOptions{})
		wake <- err
	}()
	_, err = watchtools.UntilWithSync(ctx, lists, &corev1.ConfigMap{}, nil, func(event watch.Event) (bool, error) {
		found, ok := event.Object.(*corev1.ConfigMap)
		return ok && found.Name == "awaited", nil
	})
	return all(err, <-wake)
}

// tables asks for what kubectl get shows.
func tables(e *env) error {
	client, err := e.clientset()
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Pods(namespace).Create(e.ctx, pod("shown"), metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, include := range []string{"", "None", "Metadata", "Object"} {
		request := client.CoreV1().RESTClient().Get().Namespace(namespace).Resource("pods").
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
		if include != "" {
			request = request.Param("includeObject", include)
		}
		table := &metav1.Table{}
		if err := request.Do(e.ctx).Into(table); err != nil {
			return fmt.Errorf("includeObject=%s: %w", include, err)
		}
		if len(table.Rows) != 1 || table.ResourceVersion == "" {
			return fmt.Errorf("the table: %+v", table)
		}
		var names string
		for _, column := range table.ColumnDefinitions {
			names += column.Name + ":" + column.Type + ";"
		}
		const columns = "Name:string;Ready:string;Status:string;Restarts:string;Age:string;IP:string;Node:string;Nominated Node:string;Readiness Gates:string;"
		cells := table.Rows[0].Cells
		err := all(
			want("columns", names, columns),
			want("cells", fmt.Sprint(cells[:4]...), fmt.Sprint("shown", "0/1", "Pending", "0")),
			want("wide cells", fmt.Sprint(cells[5:]...), fmt.Sprint("<none>", "<none>", "<none>", "<none>")),
		)
		if err != nil {
			return err
		}
		raw := table.Rows[0].Object.Raw
		if include == "None" {
			if err := want("no object", len(raw), 0); err != nil {
				return err
			}
			continue
		}
		var object struct {
			metav1.TypeMeta
			metav1.ObjectMeta `json:"metadata"`
			Spec              *corev1.PodSpec `json:"spec"`
		}
		if err := json.Unmarshal(raw, &object); err != nil {
			return err
		}
		kind := "PartialObjectMetadata"
		if include == "Object" {
			kind = "Pod"
		}
		if err := all(want("the object's kind", object.Kind, kind), want("its name", object.Name, "shown"), want("it has a spec", object.Spec != nil, include == "Object")); err != nil {
			return err
		}
	}
	stream, err := client.CoreV1().RESTClient().Get().Namespace(namespace).Resource("pods").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Param("watch", "true").Stream(e.ctx)
	if err != nil {
		return fmt.Errorf("a watch of tables: %w", err)
	}
	defer stream.Close()
	events := json.NewDecoder(stream)
	for n := range 2 {
		var event struct {
			Type   watch.EventType
			Object metav1.Table
		}
		if err := events.Decode(&event); err != nil {
			return fmt.Errorf("a watch of tables: %w", err)
		}
		// Columns are told with the first event only.
		err := all(
			want("the type", event.Type, watch.Added),
			want("rows", len(event.Object.Rows), 1),
			want("it has columns", len(event.Object.ColumnDefinitions) > 0, n == 0),
		)
		if err != nil {
			return err
		}
		if n == 0 {
			if _, err := client.CoreV1().Pods(namespace).Create(e.ctx, pod("second"), metav1.CreateOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}
