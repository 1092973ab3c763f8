package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/reference"
)

func init() {
	checks["events"] = eventsAreCounted
}

// eventsAreCounted records through both APIs: repeated ones are patched, not made again.
func eventsAreCounted(e *env) error {
	client, err := e.clientset()
	if err != nil {
		return err
	}
	about, err := client.CoreV1().Pods(namespace).Create(e.ctx, pod("talked-about"), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	related, err := reference.GetReference(scheme.Scheme, about)
	if err != nil {
		return err
	}

	older := record.NewBroadcaster(record.WithContext(e.ctx))
	older.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: client.CoreV1().Events(namespace)})
	recorder := older.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "older", Host: "here"})
	for range 3 {
		recorder.Eventf(related, corev1.EventTypeWarning, "Again", "number %d", 1)
	}
	err = e.until("the count", func() error {
		list, err := client.CoreV1().Events(namespace).List(e.ctx, metav1.ListOptions{FieldSelector: "reason=Again,involvedObject.name=talked-about,type=Warning"})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("%d events", len(list.Items))
		}
		event := list.Items[0]
		return all(
			want("count", event.Count, 3),
			want("message", event.Message, "number 1"),
			want("source", event.Source, corev1.EventSource{Component: "older", Host: "here"}),
			want("reporting component", event.ReportingController, "older"),
		)
	})
	if err != nil {
		return err
	}

	newer := events.NewEventBroadcasterAdapterWithContext(e.ctx, client)
	newer.StartRecordingToSink(e.ctx.Done())
	modern := newer.NewRecorder("newer")
	tell := func() { modern.Eventf(about, nil, corev1.EventTypeNormal, "Seen", "Looking", "it is %s", "there") }
	tell()
	// Were the second told before the first is stored, client-go would try again only after 10 s.
	err = e.until("the first", func() error {
		list, err := client.EventsV1().Events(namespace).List(e.ctx, metav1.ListOptions{FieldSelector: "reason=Seen"})
		if err != nil {
			return err
		}
		return want("events", len(list.Items), 1)
	})
	if err != nil {
		return err
	}
	tell()
	err = e.until("the series", func() error {
		list, err := client.EventsV1().Events(namespace).List(e.ctx, metav1.ListOptions{FieldSelector: "reason=Seen"})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("%d events", len(list.Items))
		}
		event := list.Items[0]
		if event.Series == nil {
			return fmt.Errorf("no series in %+v", event)
		}
		return all(
			want("count", event.Series.Count, 2),
			want("note", event.Note, "it is there"),
			want("action", event.Action, "Looking"),
			want("who tells", event.ReportingController, "newer"),
			want("about", event.Regarding.Name, "talked-about"),
		)
	})
	if err != nil {
		return err
	}
	// The same events through the other API.
	seen, err := client.CoreV1().Events(namespace).List(e.ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(about.UID)})
	if err != nil {
		return err
	}
	return want("events of the pod in the older API", len(seen.Items), 2)
}
