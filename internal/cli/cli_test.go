// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/report"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	kind := func(k report.ErrorKind) error {
		return fmt.Errorf("a: %w", &report.Error{Kind: k, Err: errors.New("b")})
	}
	for name, test := range map[string]struct {
		err    error
		code   int
		stderr string
	}{
		"done":           {nil, 0, ""},
		"failed":         {errors.New("x: y\n"), 1, "slipway: x: y\n"},
		"usage":          {usageError{errors.New("bad flag")}, 2, "slipway: bad flag\n"},
		"spec":           {kind(report.InvalidSpec), 3, "slipway: a: b\n"},
		"preflight":      {kind(report.Preflight), 4, "slipway: a: b\n"},
		"timeout":        {kind(report.TimedOut), 5, "slipway: a: b\n"},
		"passed through": {exitError(42), 42, ""},
		"interrupted":    {interruptedError("interrupted; continue with x"), 130, "slipway: interrupted; continue with x\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			hidden := &cobra.Command{Use: "probe", Args: noArgs, RunE: func(*cobra.Command, []string) error { return test.err }}
			e := Env{Inventory: &inventory.Inventory{}, Out: &stderr, Err: &stderr, Hidden: []*cobra.Command{hidden}}
			if code := Run(t.Context(), e, []string{"probe"}); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if diff := cmp.Diff(test.stderr, stderr.String()); diff != "" {
				t.Errorf("stderr (-want +got):\n%s", diff)
			}
		})
	}
}

// TestStoppable checks that Ctrl-C takes effect within a second, whatever the work does, and that stoppable waits for work that
// ends in time.
func TestStoppable(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	for name, test := range map[string]struct {
		work  time.Duration // after the stop
		err   error
		limit time.Duration
	}{
		"ends in time":  {100 * time.Millisecond, failed, 100 * time.Millisecond},
		"hangs":         {time.Hour, context.Canceled, stopLimit},
		"ends too late": {stopLimit + 1, context.Canceled, stopLimit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				stop()
				begun := time.Now()
				err := stoppable(ctx, func() error {
					time.Sleep(test.work) // the clock of the bubble
					return failed
				})
				if !errors.Is(err, test.err) || time.Since(begun) != test.limit {
					t.Errorf("got %v after %s, want %v after %s", err, time.Since(begun), test.err, test.limit)
				}
				time.Sleep(2 * time.Hour) // lets the work end
			})
		})
	}
}

func TestOwnFlags(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		name string
		root string
		rest []string
	}{
		"no flags":         {[]string{"get", "pods", "--name", "x"}, "dev", "/r", []string{"get", "pods", "--name", "x"}},
		"name":             {[]string{"--name", "test", "get", "-A"}, "test", "/r", []string{"get", "-A"}},
		"joined":           {[]string{"--name=test", "--root=/q", "get"}, "test", "/q", []string{"get"}},
		"dash":             {[]string{"--name=test", "--", "--name", "x"}, "test", "/r", []string{"--name", "x"}},
		"dash for kubectl": {[]string{"exec", "web", "--", "ls", "-l"}, "dev", "/r", []string{"exec", "web", "--", "ls", "-l"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := Env{Inventory: &inventory.Inventory{Dir: clusterdir.Dir{Root: "/r"}}}
			name, rest, err := ownFlags(e, test.args)
			if err != nil || name != test.name || e.Inventory.Dir.Root != test.root {
				t.Errorf("got name %q, root %q (%v), want %q, %q", name, e.Inventory.Dir.Root, err, test.name, test.root)
			}
			if diff := cmp.Diff(test.rest, rest); diff != "" {
				t.Errorf("rest (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRootHint checks that only a permission error of a user who is not root has the hint.
func TestRootHint(t *testing.T) {
	t.Parallel()
	denied := fmt.Errorf("list clusters: %w", &fs.PathError{Op: "open", Path: "/x", Err: syscall.EACCES})
	for name, test := range map[string]struct {
		err  error
		uid  int
		want string
	}{
		"denied":             {denied, 1000, ": run the command as root, for example with sudo"},
		"denied though root": {denied, 0, ""},
		"another error":      {fs.ErrNotExist, 1000, ""},
		"none":               {nil, 1000, ""},
	} {
		if got := rootHint(test.err, test.uid); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// TestResumeCommand checks that the command in the message of an interrupted up is about the same cluster.
func TestResumeCommand(t *testing.T) {
	t.Parallel()
	three, none := 3, 0
	for want, o := range map[string]bootstrap.UpOptions{
		"slipway up --control-planes 3 --workers 0": {Source: clusterdir.Source{Name: "dev", Shape: spec.Shape{ControlPlanes: &three, Workers: &none}}},
		"slipway up":                                       {Source: clusterdir.Source{Name: "dev"}},
		"slipway up --name test --init systemd":            {Source: clusterdir.Source{Name: "test"}, Init: "systemd"},
		"slipway up -f min.yaml":                           {Source: clusterdir.Source{File: "min.yaml"}},
		"slipway up --name test -f min.yaml":               {Source: clusterdir.Source{Name: "test", File: "min.yaml"}},
		"slipway up -f min.yaml --kubernetes-version 1.36": {Source: clusterdir.Source{File: "min.yaml", Version: "1.36"}},
	} {
		if got := resumeCommand(o); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
