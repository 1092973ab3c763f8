package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
)

// exchange is one request with the head of its answer.
type exchange struct {
	method, path string
	query        url.Values
	sent, got    string
	code         int
}

func (x exchange) String() string {
	return fmt.Sprintf("%s %s?%s (%s) -> %d %s", x.method, x.path, x.query.Encode(), x.sent, x.code, x.got)
}

// traffic remembers every exchange, in order.
type traffic struct {
	mu   sync.Mutex
	seen []exchange
}

type recorder struct {
	traffic *traffic
	next    http.RoundTripper
}

func (t *traffic) wrap(next http.RoundTripper) http.RoundTripper {
	return &recorder{t, next}
}

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	r.traffic.mu.Lock()
	defer r.traffic.mu.Unlock()
	r.traffic.seen = append(r.traffic.seen, exchange{
		method: request.Method,
		path:   request.URL.Path,
		query:  request.URL.Query(),
		sent:   request.Header.Get("Content-Type"),
		got:    response.Header.Get("Content-Type"),
		code:   response.StatusCode,
	})
	return response, nil
}

// forget starts anew.
func (t *traffic) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen = nil
}

// matching gives what was exchanged and passes the filter.
func (t *traffic) matching(filter func(exchange) bool) []exchange {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []exchange
	for _, x := range t.seen {
		if filter(x) {
			found = append(found, x)
		}
	}
	return found
}

// none fails when anything passes the filter.
func (t *traffic) none(what string, filter func(exchange) bool) error {
	if found := t.matching(filter); len(found) > 0 {
		return fmt.Errorf("%s: %v", what, found[0])
	}
	return nil
}

// some fails when nothing passes the filter.
func (t *traffic) some(what string, filter func(exchange) bool) error {
	if len(t.matching(filter)) == 0 {
		return fmt.Errorf("%s: never seen", what)
	}
	return nil
}

func (x exchange) isWatch() bool {
	return x.query.Get("watch") == "true" || x.query.Get("watch") == "1"
}

func (x exchange) isStreamingList() bool {
	return x.isWatch() && x.query.Get("sendInitialEvents") == "true"
}

// isList is a GET of a whole resource, all at once or in pages.
func (x exchange) isList(resource string) bool {
	return x.method == http.MethodGet && !x.isWatch() && strings.HasSuffix(x.path, "/"+resource)
}
