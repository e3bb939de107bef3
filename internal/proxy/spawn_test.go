// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/machine/process"
)

func TestSpawn(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "api.sock")
	ln, err := ListenUnix(t.Context(), socket)
	must(t, err)
	defer ln.Close()
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, "through")
			conn.Close()
		}
	}()
	c := Config{Dir: filepath.Join(t.TempDir(), "proxy"), Exe: "/proc/self/exe", Sockets: []string{socket}, FirstPort: 26443}
	t.Cleanup(func() { check(t, Stop(context.Background(), c)) })
	if _, err := Find(c); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Find before Spawn: got %v, want ErrNotExist", err)
	}
	first := spawn(t, c)
	if !first.Started || first.Addr.Port() < 26443 {
		t.Errorf("first Spawn: got %+v", first)
	}
	answers(t, first)
	if again := spawn(t, c); again.Started || again.PID != first.PID || again.Addr != first.Addr {
		t.Errorf("second Spawn: got %+v, first %+v", again, first)
	}
	killed, err := process.Identify(first.PID)
	must(t, err, killed.Signal(unix.SIGKILL))
	await(t, "the killed proxy is gone", func() bool { return !killed.Alive() })
	third := spawn(t, c)
	if !third.Started || third.Addr != first.Addr {
		t.Errorf("Spawn after kill -9: got %+v, first %+v", third, first)
	}
	answers(t, third)
	id, err := process.Identify(third.PID)
	must(t, err, Stop(t.Context(), c), Stop(t.Context(), c))
	if id.Alive() {
		t.Error("the proxy is running after Stop")
	}
	if _, err := os.Stat(c.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stop did not remove the directory: %v", err)
	}
}

// Each cluster gets its own port. If another process uses the recorded port, the error says so.
func TestSpawnPorts(t *testing.T) {
	t.Parallel()
	a := Config{Dir: filepath.Join(t.TempDir(), "a"), Exe: "/proc/self/exe", Sockets: []string{"/nonexistent"}, FirstPort: 27443}
	b := a
	b.Dir += "b"
	t.Cleanup(func() { check(t, errors.Join(Stop(context.Background(), a), Stop(context.Background(), b))) })
	first, second := spawn(t, a), spawn(t, b)
	if first.Addr == second.Addr {
		t.Errorf("both proxies listen on %v", first.Addr)
	}
	must(t, unix.Kill(first.PID, unix.SIGKILL))
	await(t, "another process takes the port", func() bool {
		thief, err := net.Listen("tcp", first.Addr.String())
		if err == nil {
			t.Cleanup(func() { thief.Close() })
		}
		return err == nil
	})
	if _, err := Spawn(t.Context(), a); err == nil || !strings.Contains(err.Error(), "kubeconfig") {
		t.Errorf("recorded port in use: got %v", err)
	}
}

// Stop does not kill another process that has the recorded pid.
func TestStopSparesOtherProcesses(t *testing.T) {
	t.Parallel()
	c := Config{Dir: filepath.Join(t.TempDir(), "p"), Exe: "/proc/self/exe", Sockets: []string{"/nonexistent"}, FirstPort: 28443}
	e := spawn(t, c)
	ours, err := process.Identify(e.PID)
	must(t, err)
	other := exec.Command("/bin/sleep", "60")
	must(t, other.Start())
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	id, err := process.Identify(other.Process.Pid)
	must(t, err, saveChild(c, childRecord{id, exeOf(os.Getpid())}), Stop(t.Context(), c))
	if !id.Alive() {
		t.Error("Stop killed another process")
	}
	must(t, ours.Signal(unix.SIGKILL))
}

func spawn(t *testing.T, c Config) Endpoint {
	t.Helper()
	e, err := Spawn(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func answers(t *testing.T, e Endpoint) {
	t.Helper()
	conn, err := net.Dial("tcp", e.Addr.String())
	must(t, err)
	defer conn.Close()
	if got, _ := io.ReadAll(conn); !bytes.Equal(got, []byte("through")) {
		t.Errorf("got answer %q", got)
	}
}

// Concurrent calls of Spawn start one proxy.
func TestSpawnAtOnce(t *testing.T) {
	t.Parallel()
	c := Config{Dir: filepath.Join(t.TempDir(), "proxy"), Exe: "/proc/self/exe", Sockets: []string{"/nonexistent"}, FirstPort: 28443}
	t.Cleanup(func() { check(t, Stop(context.Background(), c)) })
	got := make([]Endpoint, 8)
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() {
			var err error
			if got[i], err = Spawn(t.Context(), c); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	started := 0
	for _, e := range got {
		if e.Started {
			started++
		}
		if e.PID != got[0].PID || e.Addr != got[0].Addr {
			t.Errorf("got %+v and %+v", e, got[0])
		}
	}
	if started != 1 {
		t.Errorf("got %d proxies started, want 1", started)
	}
}
