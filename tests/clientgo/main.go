// Uses a Pintle API server the way programs written with client-go do. Each check is a small
// program of its own; crates/e2e/tests/clientgo.rs runs them one by one, each on a fresh server.
//
//	clientgo list
//	clientgo KUBECONFIG CHECK
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// patience is how long a single thing that must happen may take.
const patience = 30 * time.Second

// namespace is where every check works.
const namespace = "default"

// env is what a check gets: a context that ends, a way to the server, and what was sent on it.
type env struct {
	ctx     context.Context
	config  *rest.Config
	traffic *traffic
}

// checks by name; each file adds its own. Those onNode need pods that run, which `list` does not promise.
var checks, onNode = map[string]func(*env) error{}, map[string]func(*env) error{}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "list" {
		names := make([]string, 0, len(checks))
		for name := range checks {
			names = append(names, name)
		}
		sort.Strings(names)
		for _, name := range names {
			fmt.Println(name)
		}
		return
	}
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: clientgo KUBECONFIG CHECK"))
	}
	check, known := checks[os.Args[2]]
	if !known {
		check, known = onNode[os.Args[2]]
	}
	if !known {
		fail(fmt.Errorf("no such check: %s", os.Args[2]))
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		fail(err)
	}
	config.QPS, config.Burst = -1, -1
	seen := &traffic{}
	config.Wrap(seen.wrap)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	e := &env{ctx: ctx, config: config, traffic: seen}
	if err := e.ready(); err != nil {
		fail(fmt.Errorf("the server: %w", err))
	}
	if err := check(e); err != nil {
		fail(err)
	}
	fmt.Println("ok", os.Args[2])
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "clientgo:", err)
	os.Exit(1)
}

// ready waits for the ServiceAccount that pods need.
func (e *env) ready() error {
	client, err := e.clientset()
	if err != nil {
		return err
	}
	return e.until("the default ServiceAccount", func() error {
		_, err := client.CoreV1().ServiceAccounts(namespace).Get(e.ctx, "default", metav1.GetOptions{})
		return err
	})
}

// clientset is the typed client with client-go's own settings.
func (e *env) clientset() (*kubernetes.Clientset, error) {
	return kubernetes.NewForConfig(e.config)
}

// until asks until there is no error, or fails with the last one.
func (e *env) until(what string, ask func() error) error {
	var last error
	err := wait.PollUntilContextTimeout(e.ctx, 20*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		last = ask()
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w (last: %v)", what, err, last)
	}
	return nil
}

// want fails unless both are equal.
func want[T comparable](what string, got, expected T) error {
	if got != expected {
		return fmt.Errorf("%s: got %v, want %v", what, got, expected)
	}
	return nil
}

// all gives the first error.
func all(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
}

// pod is one that nobody schedules.
func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			SchedulerName: "nobody",
			Containers:    []corev1.Container{{Name: "main", Image: "example.invalid/app:1"}},
		},
	}
}
