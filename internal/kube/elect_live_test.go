// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// leaderProcess in the environment makes of the test binary a candidate that writes as long as it may, and longer.
const leaderProcess = "SLIPWAY_TEST_LEADER"

func quick(name, identity string) ElectConfig {
	return ElectConfig{
		Namespace: "kube-system", Name: name, Identity: identity,
		Lease: 3 * time.Second, Renew: 2 * time.Second, Retry: 300 * time.Millisecond,
	}
}

// leadAsProcess writes without looking at its context. Its lines: "leads", "wrote" each time, and "fenced" when it is refused.
func leadAsProcess(kubeconfig string) int {
	c, err := Connect(kubeconfig, nil)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	err = c.Elect(context.Background(), quick("stopped", "stopped"), func(_ context.Context, fence Fence) error {
		fmt.Println("leads")
		guarded, err := c.Fenced(fence)
		if err != nil {
			return err
		}
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			err := touch(context.Background(), guarded, "stopped")
			if errors.Is(err, ErrFenced) {
				fmt.Println("fenced")
				return nil
			}
			if err == nil {
				fmt.Println("wrote")
			}
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	return 0
}

// touch makes a ConfigMap with a name of its own.
func touch(ctx context.Context, c *Client, who string) error {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"generateName": who + "-", "labels": map[string]any{"who": who}},
	}}
	_, err := c.dyn.Resource(configMaps).Namespace("default").Create(ctx, o, metav1.CreateOptions{})
	return err
}

func touches(t *testing.T, c *Client, who string) int {
	t.Helper()
	found, err := c.dyn.Resource(configMaps).Namespace("default").List(t.Context(), metav1.ListOptions{LabelSelector: "who=" + who})
	if err != nil {
		t.Fatal(err)
	}
	return len(found.Items)
}

// A process that was stopped while it led, and goes on when another leads, writes nothing.
func TestStoppedLeader(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	c := s.client(t, "super-admin")
	lines, leader := startLeader(t, s)
	for range 5 {
		waitLine(t, lines, "wrote")
	}
	if err := leader.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	err := c.Elect(t.Context(), quick("stopped", "other"), func(context.Context, Fence) error {
		t.Logf("the other leads %s after the first was stopped", time.Since(begun))
		before := touches(t, c, "stopped")
		if err := leader.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		waitLine(t, lines, "fenced")
		if after := touches(t, c, "stopped"); before < 5 || after != before {
			t.Errorf("%d writes before it was stopped, %d after it went on", before, after-before)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func startLeader(t *testing.T, s *server) (<-chan string, *os.Process) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), leaderProcess+"="+s.kubeconfig(t, "super-admin"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 10000)
	go func() {
		defer close(lines)
		for text := bufio.NewScanner(out); text.Scan(); {
			lines <- text.Text()
		}
	}()
	t.Cleanup(func() { kill(cmd) })
	return lines, cmd.Process
}

func waitLine(t *testing.T, lines <-chan string, want string) {
	t.Helper()
	for line := range lines {
		if line == want {
			return
		}
	}
	t.Fatalf("the leader's process ended before it said %q", want)
}

// With the usual times: given back, the lease is another's as soon as that looks again, every 2 s, and not only when it has run out; after a crash within 20 s.
func TestElectTimes(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	for name, tt := range map[string]struct {
		crash bool
		limit time.Duration
	}{"given back": {limit: 8 * time.Second}, "crash": {crash: true, limit: 20 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conf := ElectConfig{Namespace: "kube-system", Name: "times-" + map[bool]string{true: "crash", false: "release"}[tt.crash], Identity: "a"}
			first, leave := context.WithCancel(t.Context())
			defer leave()
			leads, left := make(chan struct{}), make(chan time.Time, 1)
			c, cut := cuttable(t, s)
			go func() {
				_ = c.Elect(first, conf, func(ctx context.Context, _ Fence) error {
					close(leads)
					<-ctx.Done()
					cut.Store(tt.crash)
					left <- time.Now()
					return ctx.Err()
				})
			}()
			<-leads
			conf.Identity, conf.Follow = "b", func(holder, _ string) {
				if holder == "a" {
					leave()
				}
			}
			err := s.client(t, "super-admin").Elect(t.Context(), conf, func(context.Context, Fence) error {
				took := time.Since(<-left)
				t.Logf("b leads %s after a has left", took)
				if took > tt.limit {
					t.Errorf("b leads only %s after a has left", took)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// cuttable is a client that can be cut off from the server.
func cuttable(t *testing.T, s *server) (*Client, *atomic.Bool) {
	t.Helper()
	c, cut := s.client(t, "super-admin"), &atomic.Bool{}
	c, err := newClient(c.conf, &http.Client{Transport: cutter{c.http.Transport, cut}}, c.log)
	if err != nil {
		t.Fatal(err)
	}
	return c, cut
}

type cutter struct {
	http.RoundTripper
	cut *atomic.Bool
}

func (c cutter) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.cut.Load() {
		return nil, errors.New("cut off")
	}
	return c.RoundTripper.RoundTrip(r)
}
