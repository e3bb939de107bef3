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
		t.Errorf("found what was never there: %v", err)
	}
	first := spawn(t, c)
	if !first.Started || first.Addr.Port() < 26443 {
		t.Errorf("first: %+v", first)
	}
	answers(t, first)
	if again := spawn(t, c); again.Started || again.PID != first.PID || again.Addr != first.Addr {
		t.Errorf("second: %+v, first: %+v", again, first)
	}
	killed, err := process.Identify(first.PID)
	must(t, err, killed.Signal(unix.SIGKILL))
	await(t, "the killed proxy is gone", func() bool { return !killed.Alive() })
	third := spawn(t, c)
	if !third.Started || third.Addr != first.Addr {
		t.Errorf("after kill -9: %+v, first: %+v", third, first)
	}
	answers(t, third)
	id, err := process.Identify(third.PID)
	must(t, err, Stop(t.Context(), c), Stop(t.Context(), c))
	if id.Alive() {
		t.Error("the proxy lives after Stop")
	}
	if _, err := os.Stat(c.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stop left its folder: %v", err)
	}
}

// Another cluster gets another port; a recorded port that somebody else took is an error that says so.
func TestSpawnPorts(t *testing.T) {
	t.Parallel()
	a := Config{Dir: filepath.Join(t.TempDir(), "a"), Exe: "/proc/self/exe", Sockets: []string{"/nonexistent"}, FirstPort: 27443}
	b := a
	b.Dir += "b"
	t.Cleanup(func() { check(t, errors.Join(Stop(context.Background(), a), Stop(context.Background(), b))) })
	first, second := spawn(t, a), spawn(t, b)
	if first.Addr == second.Addr {
		t.Errorf("both listen on %v", first.Addr)
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
		t.Errorf("port taken by another: %v", err)
	}
}

// A process that happens to have the recorded pid is not ours.
func TestStopSparesStrangers(t *testing.T) {
	t.Parallel()
	c := Config{Dir: filepath.Join(t.TempDir(), "p"), Exe: "/proc/self/exe", Sockets: []string{"/nonexistent"}, FirstPort: 28443}
	e := spawn(t, c)
	ours, err := process.Identify(e.PID)
	must(t, err)
	stranger := exec.Command("/bin/sleep", "60")
	must(t, stranger.Start())
	defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
	id, err := process.Identify(stranger.Process.Pid)
	must(t, err, saveChild(c, childRecord{id, exeOf(os.Getpid())}), Stop(t.Context(), c))
	if !id.Alive() {
		t.Error("Stop killed a stranger")
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
		t.Errorf("answer %q", got)
	}
}

// Several programs at once start one proxy between them.
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
			t.Errorf("%+v and %+v", e, got[0])
		}
	}
	if started != 1 {
		t.Errorf("%d proxies were started", started)
	}
}
