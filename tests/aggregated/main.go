// Answers for an API of its own, sample.example.com/v1, behind a Pintle API server that passes requests on.
// It believes the server about who asks, by what Kubernetes' own library for that says; its objects are in
// memory. crates/e2e/tests/aggregated.rs runs it and uses it with kubectl.
//
//	aggregated KUBECONFIG ADDRESS SERVICE
//
// ADDRESS is the IP to listen on; SERVICE the namespace and name of the Service it is behind. The first line
// it prints is the port and, in base64, the authority that signed its certificate.
package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 4 {
		return fmt.Errorf("usage: aggregated KUBECONFIG ADDRESS NAMESPACE/SERVICE")
	}
	namespace, service, found := strings.Cut(os.Args[3], "/")
	if !found {
		return fmt.Errorf("%s is no namespace and name", os.Args[3])
	}
	authenticate, err := believe(os.Args[1])
	if err != nil {
		return err
	}
	certificate, authority, err := certify(service + "." + namespace + ".svc")
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(os.Args[2], "0"))
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           &api{store: newStore(), authenticate: authenticate},
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{certificate},
			ClientAuth:   tls.RequestClientCert,
		},
	}
	fmt.Println(port, base64.StdEncoding.EncodeToString(authority))
	return server.ServeTLS(listener, "", "")
}

// believe reads from the cluster whom to believe about who asks.
func believe(kubeconfig string) (authenticator.Request, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	maps := client.CoreV1().ConfigMaps("kube-system")
	told, err := maps.Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	list := func(key string) (headerrequest.StaticStringSlice, error) {
		var words []string
		if err := json.Unmarshal([]byte(told.Data[key]), &words); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		return words, nil
	}
	lists := map[string]headerrequest.StaticStringSlice{}
	for _, key := range []string{"allowed-names", "username-headers", "uid-headers", "group-headers", "extra-headers-prefix"} {
		if lists[key], err = list("requestheader-" + key); err != nil {
			return nil, err
		}
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(told.Data["requestheader-client-ca-file"])) {
		return nil, fmt.Errorf("no authority of front proxies is told")
	}
	verify := func() (x509.VerifyOptions, bool) {
		usages := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		return x509.VerifyOptions{Roots: roots, KeyUsages: usages}, true
	}
	return headerrequest.NewDynamicVerifyOptionsSecure(verify, lists["allowed-names"], lists["username-headers"],
		lists["uid-headers"], lists["group-headers"], lists["extra-headers-prefix"]), nil
}

// certify makes an authority and a certificate for the name.
func certify(name string) (tls.Certificate, []byte, error) {
	none := tls.Certificate{}
	ownKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return none, nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return none, nil, err
	}
	now := time.Now()
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sample"}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(24 * time.Hour), DNSNames: []string{name}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	ownBytes, err := x509.CreateCertificate(rand.Reader, authority, authority, &ownKey.PublicKey, ownKey)
	if err != nil {
		return none, nil, err
	}
	bytes509, err := x509.CreateCertificate(rand.Reader, leaf, authority, &key.PublicKey, ownKey)
	if err != nil {
		return none, nil, err
	}
	var text bytes.Buffer
	if err := pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: ownBytes}); err != nil {
		return none, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{bytes509}, PrivateKey: key}, text.Bytes(), nil
}
