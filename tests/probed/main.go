// Probed is what the tests of probes probe: HTTPS on 8443, gRPC's health question on 9090, and plain HTTP
// on 8080, where it is told how to answer them (/https/bad, /grpc/bad, /grpc/good).
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
)

// The service that the health question is about.
const service = "named"

func main() {
	var https, grpc atomic.Bool
	https.Store(true)
	grpc.Store(true)

	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Probe") != "yes" || !https.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprintln(w, "asked by", r.UserAgent())
	}))
	secure.Listener.Close()
	secure.Listener = listen(":8443")
	secure.StartTLS()

	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	health := http.Server{Protocols: &protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 1024))
		w.Header().Set("Content-Type", "application/grpc")
		code := "0"
		switch {
		case err != nil || r.URL.Path != "/grpc.health.v1.Health/Check":
			code = "12"
		// A frame of five bytes, then field 1 with its length and the name.
		case len(body) < 7 || string(body[7:]) != service:
			code = "5"
		default:
			status := byte(2)
			if grpc.Load() {
				status = 1
			}
			w.Write([]byte{0, 0, 0, 0, 2, 8, status})
		}
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", code)
	})}
	go func() { log.Fatal(health.Serve(listen(":9090"))) }()

	log.Fatal(http.Serve(listen(":8080"), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/https/bad":
			https.Store(false)
		case "/grpc/bad":
			grpc.Store(false)
		case "/grpc/good":
			grpc.Store(true)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})))
}

func listen(address string) net.Listener {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	return listener
}
