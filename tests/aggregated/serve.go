package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// makerAnnotation says who made a ship.
const makerAnnotation = group + "/made-by"

var resource = schema.GroupResource{Group: group, Resource: plural}

// api answers requests of whom the front proxy says who asks. Whether they may it has decided.
type api struct {
	store        *store
	authenticate authenticator.Request
}

func write(w http.ResponseWriter, code int, media string, value any) {
	w.Header().Set("Content-Type", media)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value)
}

func fail(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.Kind, status.APIVersion = "Status", "v1"
	write(w, int(status.Code), "application/json", status)
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, known, err := a.authenticate.AuthenticateRequest(r)
	if err != nil || !known {
		fail(w, apierrors.NewUnauthorized("only the front proxy is believed"))
		return
	}
	path := strings.TrimSuffix(r.URL.Path, "/")
	if path == "/apis" && strings.Contains(r.Header.Get("Accept"), "as=APIGroupDiscoveryList") {
		write(w, http.StatusOK, aggregated, everything())
		return
	}
	if document, found := documents()[path]; found && r.Method == http.MethodGet {
		write(w, http.StatusOK, "application/json", document)
		return
	}
	rest, found := strings.CutPrefix(path, "/apis/"+group+"/"+version+"/")
	if !found {
		http.NotFound(w, r)
		return
	}
	namespace := ""
	parts := strings.Split(rest, "/")
	if len(parts) >= 3 && parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	switch {
	case parts[0] != plural || len(parts) > 2:
		http.NotFound(w, r)
	case len(parts) == 1:
		a.serveAll(w, r, namespace, who.User.GetName())
	default:
		a.serveOne(w, r, namespace, parts[1])
	}
}

// chosen are the ships of a namespace that a request selects.
func chosen(r *http.Request, namespace string) (func(*unstructured.Unstructured) bool, error) {
	query := r.URL.Query()
	byLabel, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		return nil, err
	}
	byField, err := fields.ParseSelector(query.Get("fieldSelector"))
	if err != nil {
		return nil, err
	}
	return func(ship *unstructured.Unstructured) bool {
		own := fields.Set{"metadata.name": ship.GetName(), "metadata.namespace": ship.GetNamespace()}
		in := namespace == "" || namespace == ship.GetNamespace()
		return in && byLabel.Matches(labels.Set(ship.GetLabels())) && byField.Matches(own)
	}, nil
}

func (a *api) serveAll(w http.ResponseWriter, r *http.Request, namespace, who string) {
	selects, err := chosen(r, namespace)
	if err != nil {
		fail(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	switch r.Method {
	case http.MethodGet:
		if watch, _ := strconv.ParseBool(r.URL.Query().Get("watch")); watch {
			a.watch(w, r, selects)
			return
		}
		ships, revision := a.store.list(selects)
		items := []any{}
		for _, ship := range ships {
			items = append(items, ship.Object)
		}
		write(w, http.StatusOK, "application/json", object{"kind": kind + "List", "apiVersion": group + "/" + version,
			"metadata": object{"resourceVersion": revision}, "items": items})
	case http.MethodPost:
		ship, status := read(r, namespace)
		if status != nil {
			fail(w, status)
			return
		}
		notes := ship.GetAnnotations()
		if notes == nil {
			notes = map[string]string{}
		}
		notes[makerAnnotation] = who
		ship.SetAnnotations(notes)
		made := a.store.put(ship, true)
		if made == nil {
			fail(w, apierrors.NewAlreadyExists(resource, ship.GetName()))
			return
		}
		write(w, http.StatusCreated, "application/json", made.Object)
	case http.MethodDelete:
		a.store.remove(selects)
		write(w, http.StatusOK, "application/json", done())
	default:
		fail(w, apierrors.NewMethodNotSupported(resource, r.Method))
	}
}

func done() metav1.Status {
	return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess}
}

func read(r *http.Request, namespace string) (*unstructured.Unstructured, *apierrors.StatusError) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	ship := &unstructured.Unstructured{}
	if err := ship.UnmarshalJSON(body); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if ship.GetKind() != kind || ship.GetName() == "" || namespace == "" {
		return nil, apierrors.NewBadRequest("a ship has a kind, a name and a namespace")
	}
	ship.SetNamespace(namespace)
	return ship, nil
}

func (a *api) serveOne(w http.ResponseWriter, r *http.Request, namespace, name string) {
	is := func(ship *unstructured.Unstructured) bool {
		return ship.GetNamespace() == namespace && ship.GetName() == name
	}
	missing := apierrors.NewNotFound(resource, name)
	switch r.Method {
	case http.MethodGet:
		ships, _ := a.store.list(is)
		if len(ships) == 0 {
			fail(w, missing)
			return
		}
		write(w, http.StatusOK, "application/json", ships[0].Object)
	case http.MethodPut:
		ship, status := read(r, namespace)
		if status != nil {
			fail(w, status)
			return
		}
		changed := a.store.put(ship, false)
		if changed == nil {
			fail(w, missing)
			return
		}
		write(w, http.StatusOK, "application/json", changed.Object)
	case http.MethodDelete:
		if len(a.store.remove(is)) == 0 {
			fail(w, missing)
			return
		}
		write(w, http.StatusOK, "application/json", done())
	default:
		fail(w, apierrors.NewMethodNotSupported(resource, r.Method))
	}
}

// watch tells of ships until the client has enough.
func (a *api) watch(w http.ResponseWriter, r *http.Request, selects func(*unstructured.Unstructured) bool) {
	query := r.URL.Query()
	flusher, can := w.(http.Flusher)
	if !can {
		fail(w, apierrors.NewInternalError(http.ErrNotSupported))
		return
	}
	from, _ := strconv.ParseInt(query.Get("resourceVersion"), 10, 64)
	ships, revision, watcher := a.store.watch(selects, from)
	if watcher == nil {
		fail(w, apierrors.NewResourceExpired("too old resource version"))
		return
	}
	defer a.store.leave(watcher)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	encoder := json.NewEncoder(w)
	send := func(kind string, value object) bool {
		return encoder.Encode(object{"type": kind, "object": value}) == nil
	}
	for _, ship := range ships {
		if !send("ADDED", ship.Object) {
			return
		}
	}
	if begins, _ := strconv.ParseBool(query.Get("sendInitialEvents")); begins {
		end := object{"resourceVersion": revision, "annotations": object{metav1.InitialEventsAnnotationKey: "true"}}
		mark := object{"kind": kind, "apiVersion": group + "/" + version, "metadata": end}
		if !send("BOOKMARK", mark) {
			return
		}
	}
	flusher.Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case told, open := <-watcher:
			if !open {
				return
			}
			if selects(told.ship) && !send(told.kind, told.ship.Object) {
				return
			}
			flusher.Flush()
		}
	}
}
