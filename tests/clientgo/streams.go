package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
)

// Checks that need a node: pod `box` sleeps in busybox with a /memory to write to, `web` is nginx. They are
// not among those that `list` gives, because their server has no kubelet.
func init() {
	onNode["streams-spdy"] = func(e *env) error { return streams(e, overSPDY, 500) }
	onNode["streams-websocket"] = func(e *env) error { return streams(e, overWebSocket, 64) }
}

// protocol is one way to speak, asked for by name: nothing falls back to another.
type protocol struct {
	name     string
	executor func(*rest.Config, *url.URL) (remotecommand.Executor, error)
	dialer   func(*rest.Config, *url.URL) (httpstream.Dialer, error)
}

var overSPDY = protocol{
	name: "spdy",
	executor: func(config *rest.Config, at *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewSPDYExecutor(config, http.MethodPost, at)
	},
	dialer: func(config *rest.Config, at *url.URL) (httpstream.Dialer, error) {
		transport, upgrader, err := spdy.RoundTripperFor(config)
		if err != nil {
			return nil, err
		}
		return spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, at), nil
	},
}

var overWebSocket = protocol{
	name: "websocket",
	executor: func(config *rest.Config, at *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(config, http.MethodGet, at.String())
	},
	dialer: func(config *rest.Config, at *url.URL) (httpstream.Dialer, error) {
		return portforward.NewSPDYOverWebsocketDialer(at, config)
	},
}

// streamer opens streams to pods.
type streamer struct {
	*env
	protocol
	client *kubernetes.Clientset
	config *rest.Config
}

func streams(e *env, over protocol, megabytes int64) error {
	client, err := e.clientset()
	if err != nil {
		return err
	}
	config := rest.CopyConfig(e.config)
	// What records requests stands in the way of a connection that becomes something else.
	config.WrapTransport = nil
	s := &streamer{env: e, protocol: over, client: client, config: config}
	for _, part := range []struct {
		name string
		run  func() error
	}{
		{"exec", s.execs},
		{"exec with a terminal", s.terminals},
		{"attach", s.attaches},
		{"copies", func() error { return s.copies(megabytes << 20) }},
		{"port-forward", s.forwards},
	} {
		if err := part.run(); err != nil {
			return fmt.Errorf("%s over %s: %w", part.name, over.name, err)
		}
	}
	return nil
}

// run streams one command, or what the container runs when there is none.
func (s *streamer) run(ctx context.Context, pod string, command []string, options remotecommand.StreamOptions) error {
	request := s.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod)
	in, out, err := options.Stdin != nil, options.Stdout != nil, options.Stderr != nil
	if command == nil {
		request = request.SubResource("attach").VersionedParams(&corev1.PodAttachOptions{
			Stdin: in, Stdout: out, Stderr: err, TTY: options.Tty,
		}, scheme.ParameterCodec)
	} else {
		request = request.SubResource("exec").VersionedParams(&corev1.PodExecOptions{
			Command: command, Stdin: in, Stdout: out, Stderr: err, TTY: options.Tty,
		}, scheme.ParameterCodec)
	}
	executor, failed := s.executor(s.config, request.URL())
	if failed != nil {
		return failed
	}
	return executor.StreamWithContext(ctx, options)
}

// code is how a command ended; -1 when it is not known.
func code(err error) int {
	var ended exec.CodeExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ended):
		return ended.ExitStatus()
	default:
		return -1
	}
}

func (s *streamer) execs() error {
	var out, errs bytes.Buffer
	command := []string{"sh", "-c", "cat; echo err >&2; exit 7"}
	err := s.run(s.ctx, "box", command, remotecommand.StreamOptions{
		Stdin: strings.NewReader("in"), Stdout: &out, Stderr: &errs,
	})
	return all(
		want(fmt.Sprintf("the code of %v", err), code(err), 7),
		want("the output", out.String(), "in"),
		want("the complaints", errs.String(), "err\n"),
		// Nothing to read, nothing to say.
		s.run(s.ctx, "box", []string{"true"}, remotecommand.StreamOptions{Stdout: io.Discard}),
	)
}

// sizes are told one after the other, each when it is asked for by closing a channel.
type sizes struct {
	first, second remotecommand.TerminalSize
	told          int
	grow, over    chan struct{}
}

func (q *sizes) Next() *remotecommand.TerminalSize {
	q.told++
	switch q.told {
	case 1:
		return &q.first
	case 2:
		select {
		case <-q.grow:
			return &q.second
		case <-q.over:
		}
	}
	<-q.over
	return nil
}

// prompts calls what is due when a word is said.
type prompts struct {
	mu   sync.Mutex
	said strings.Builder
	due  map[string]func()
}

func (p *prompts) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said.Write(b)
	for word, run := range p.due {
		if strings.Contains(p.said.String(), word) {
			delete(p.due, word)
			run()
		}
	}
	return len(b), nil
}

func (p *prompts) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// resized is a script that goes on when its terminal has had two sizes.
const resized = `until stty size | grep -q "33 77"; do sleep 0.05; done; echo fir""st
until stty size | grep -q "44 55"; do sleep 0.05; done; echo sec""ond
`

// terminal runs a script that says first and second as its terminal is resized, and then reads a line.
func (s *streamer) terminal(ctx context.Context, pod string, command []string, due map[string]func()) (string, error) {
	input, answer := io.Pipe()
	q := &sizes{
		first:  remotecommand.TerminalSize{Width: 77, Height: 33},
		second: remotecommand.TerminalSize{Width: 55, Height: 44},
		grow:   make(chan struct{}),
		over:   make(chan struct{}),
	}
	defer close(q.over)
	defer answer.Close()
	p := &prompts{due: map[string]func(){
		"first":  func() { close(q.grow) },
		"second": func() { go io.WriteString(answer, "hello\n") },
	}}
	for word, run := range due {
		p.due[word] = run
	}
	err := s.run(ctx, pod, command, remotecommand.StreamOptions{
		Stdin: input, Stdout: p, Tty: true, TerminalSizeQueue: q,
	})
	return p.String(), err
}

func (s *streamer) terminals() error {
	script := resized + "read line; echo got $line; exit 3"
	said, err := s.terminal(s.ctx, "box", []string{"sh", "-c", script}, nil)
	return all(
		want(fmt.Sprintf("the code of %v after %q", err, said), code(err), 3),
		want("an answer in "+said, strings.Contains(said, "got hello"), true),
	)
}

func (s *streamer) attaches() error {
	box, err := s.client.CoreV1().Pods(namespace).Get(s.ctx, "box", metav1.GetOptions{})
	if err != nil {
		return err
	}
	var grace int64
	name := "terminal-" + s.name
	pods := s.client.CoreV1().Pods(namespace)
	_, err = pods.Create(s.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "main", Image: box.Spec.Containers[0].Image, Stdin: true, TTY: true,
				Command: []string{"sh", "-c", resized + "read line; while true; do echo got $line; sleep 0.1; done"},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	err = s.until("the pod runs", func() error {
		pod, err := pods.Get(s.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return want("its phase", pod.Status.Phase, corev1.PodRunning)
	})
	if err != nil {
		return err
	}
	// The container says it for ever; who has heard enough goes.
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	said, err := s.terminal(ctx, name, nil, map[string]func(){"got hello": cancel})
	return all(
		want("an answer in "+said, strings.Contains(said, "got hello"), true),
		want(fmt.Sprintf("left, not %v", err), errors.Is(err, context.Canceled), true),
		pods.Delete(s.ctx, name, metav1.DeleteOptions{}),
	)
}

// noise is the same every time, and compresses badly.
func noise(size int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{1}), size)
}

// copies goes both ways as kubectl cp does: an archive into and out of tar.
func (s *streamer) copies(size int64) error {
	sent := sha256.New()
	archive, file := io.Pipe()
	go func() {
		out := tar.NewWriter(file)
		err := out.WriteHeader(&tar.Header{Name: "file", Mode: 0o600, Size: size, Format: tar.FormatGNU})
		if err == nil {
			_, err = io.CopyBuffer(io.MultiWriter(out, sent), struct{ io.Reader }{noise(size)}, make([]byte, 256<<10))
		}
		if err == nil {
			err = out.Close()
		}
		file.CloseWithError(err)
	}()
	var errs bytes.Buffer
	into := []string{"tar", "-xmf", "-", "-C", "/memory"}
	if err := s.run(s.ctx, "box", into, remotecommand.StreamOptions{Stdin: archive, Stderr: &errs}); err != nil {
		return fmt.Errorf("there: %w: %s", err, errs.String())
	}
	back, out := io.Pipe()
	var received [sha256.Size]byte
	var length int64
	read := make(chan error, 1)
	go func() {
		hash := sha256.New()
		in := tar.NewReader(back)
		_, err := in.Next()
		if err == nil {
			length, err = io.CopyBuffer(hash, struct{ io.Reader }{in}, make([]byte, 256<<10))
		}
		hash.Sum(received[:0])
		// What pads the archive is read, too.
		io.Copy(io.Discard, back)
		read <- err
	}()
	from := []string{"sh", "-c", "tar -cf - -C /memory file && rm /memory/file"}
	err := s.run(s.ctx, "box", from, remotecommand.StreamOptions{Stdout: out, Stderr: &errs})
	out.Close()
	if err != nil {
		return fmt.Errorf("back: %w: %s", err, errs.String())
	}
	return all(
		<-read,
		want("the length", length, size),
		want("the hash", fmt.Sprintf("%x", received), fmt.Sprintf("%x", sent.Sum(nil))),
	)
}

// forwards has a hundred connections at once.
func (s *streamer) forwards() error {
	at := s.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name("web").SubResource("portforward")
	dialer, err := s.dialer(s.config, at.URL())
	if err != nil {
		return err
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	var errs bytes.Buffer
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:80"}, stop, ready, io.Discard, &errs)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		return fmt.Errorf("it ended: %w", err)
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		return err
	}
	page := fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local)
	const many = 100
	got := make(chan error, many)
	for range many {
		go func() { got <- s.page(page) }()
	}
	var failures []error
	for range many {
		failures = append(failures, <-got)
	}
	close(stop)
	return all(errors.Join(failures...), <-ended)
}

// page fetches one on a connection of its own.
func (s *streamer) page(at string) error {
	request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return all(
		err,
		want("the code", answer.StatusCode, http.StatusOK),
		want("a whole page", strings.Contains(string(body), "</html>"), true),
	)
}
