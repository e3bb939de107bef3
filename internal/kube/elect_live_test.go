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

// leaderProcess in the environment makes the test binary a candidate that keeps writing.
const leaderProcess = "SLIPWAY_TEST_LEADER"

func quick(name, identity string) ElectConfig {
	return ElectConfig{
		Namespace: "kube-system", Name: name, Identity: identity,
		Lease: 3 * time.Second, Renew: 2 * time.Second, Retry: 300 * time.Millisecond,
	}
}

// leadAsProcess keeps writing and ignores its context. It prints "leads", "wrote" for each write, and "fenced" when one is refused.
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
			err := createConfigMap(context.Background(), guarded, "stopped")
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

// createConfigMap creates a ConfigMap with a generated name.
func createConfigMap(ctx context.Context, c *Client, who string) error {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"generateName": who + "-", "labels": map[string]any{"who": who}},
	}}
	_, err := c.dyn.Resource(configMaps).Namespace("default").Create(ctx, o, metav1.CreateOptions{})
	return err
}

func countConfigMaps(t *testing.T, c *Client, who string) int {
	t.Helper()
	found, err := c.dyn.Resource(configMaps).Namespace("default").List(t.Context(), metav1.ListOptions{LabelSelector: "who=" + who})
	if err != nil {
		t.Fatal(err)
	}
	return len(found.Items)
}

// A leader process that was stopped, and continues when another candidate is the leader, writes nothing.
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
		t.Logf("the other candidate became the leader %s after the first was stopped", time.Since(begun))
		before := countConfigMaps(t, c, "stopped")
		if err := leader.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		waitLine(t, lines, "fenced")
		if after := countConfigMaps(t, c, "stopped"); before < 5 || after != before {
			t.Errorf("got %d writes before the stop and %d after it continued, want at least 5 and none", before, after-before)
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
	t.Fatalf("the leader process exited before it printed %q", want)
}

// With the default durations, a released lease is acquired at the next check of another candidate (every 2 s), and the lease of a
// crashed leader within 20 s.
func TestElectTimes(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	for name, tt := range map[string]struct {
		crash bool
		limit time.Duration
	}{"released": {limit: 8 * time.Second}, "crash": {crash: true, limit: 20 * time.Second}} {
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
				t.Logf("b became the leader %s after a left", took)
				if took > tt.limit {
					t.Errorf("b became the leader %s after a left, want at most %s", took, tt.limit)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// cuttable returns a client that can be cut off from the server.
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
