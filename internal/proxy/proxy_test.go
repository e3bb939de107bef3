// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary acts as "slipway proxy-serve".
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "proxy-serve" {
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
		defer stop()
		if err := Child(ctx, os.Args[2:]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// chain sets up client → TCP → unix socket → TCP → server, as in production. The socket's path exceeds the
// kernel's limit.
func chain(t *testing.T, server func(net.Conn)) (address string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	must(t, os.Mkdir(dir, 0o700))
	socket := filepath.Join(dir, "api.sock")
	api := listen(t)
	front := listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		var conns sync.WaitGroup
		defer conns.Wait()
		for {
			conn, err := api.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { defer conn.Close(); server(conn) })
		}
	})
	all.Go(func() { check(t, ServeUnix(ctx, socket, api.Addr().String)) })
	all.Go(func() { check(t, ServeTCP(ctx, front, func() []string { return []string{socket} })) })
	t.Cleanup(func() {
		cancel()
		api.Close()
		all.Wait() // blocks if a goroutine leaks
		if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket was not removed: %v", err)
		}
	})
	await(t, "the socket answers", func() bool {
		conn, err := DialUnix(t.Context(), socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return front.Addr().String()
}

func TestHalfClose(t *testing.T) {
	t.Parallel()
	addr := chain(t, func(c net.Conn) { // answers after the end of the request
		sum := sha256.New()
		n, err := io.Copy(sum, c)
		fmt.Fprintf(c, "%d %v %x", n, err, sum.Sum(nil))
	})
	var clients sync.WaitGroup
	for i := range 20 {
		clients.Go(func() {
			body := make([]byte, 100_000*i)
			_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(body)
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, err = conn.Write(body)
			check(t, err)
			check(t, conn.(*net.TCPConn).CloseWrite())
			got, err := io.ReadAll(conn)
			if want := fmt.Sprintf("%d <nil> %x", len(body), sha256.Sum256(body)); string(got) != want || err != nil {
				t.Errorf("%d bytes: got %q, %v; want %q", len(body), got, err, want)
			}
		})
	}
	clients.Wait()
}

func TestServerTalksFirstAndCloses(t *testing.T) {
	t.Parallel()
	conn, err := net.Dial("tcp", chain(t, func(c net.Conn) { fmt.Fprint(c, "hello") }))
	must(t, err)
	defer conn.Close()
	if got, err := io.ReadAll(conn); string(got) != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// An idle connection does not prevent a proxy from stopping: chain's cleanup waits for all goroutines.
func TestEndsWithIdleConnections(t *testing.T) {
	t.Parallel()
	addr := chain(t, func(c net.Conn) { fmt.Fprint(c, "x"); _, _ = io.Copy(io.Discard, c) })
	for range 5 {
		conn, err := net.Dial("tcp", addr)
		must(t, err)
		t.Cleanup(func() { conn.Close() })
		_, err = io.ReadFull(conn, make([]byte, 1))
		must(t, err)
	}
}

func TestMachineIsAway(t *testing.T) {
	t.Parallel()
	ln := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- ServeTCP(ctx, ln, func() []string { return []string{filepath.Join(t.TempDir(), "none.sock")} })
	}()
	conn, err := net.Dial("tcp", ln.Addr().String())
	must(t, err)
	defer conn.Close()
	if got, err := io.ReadAll(conn); len(got) != 0 {
		t.Errorf("got %q, %v", got, err)
	}
	cancel()
	check(t, <-done)
}

func TestListenUnix(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.sock")
	first, err := ListenUnix(t.Context(), path)
	must(t, err)
	if _, err := ListenUnix(t.Context(), path); err == nil || !strings.Contains(err.Error(), "another process is listening") {
		t.Errorf("listen on a live socket: got %v, want an error", err)
	}
	must(t, first.Close()) // keeps the file, as after kill -9
	second, err := ListenUnix(t.Context(), path)
	must(t, err)
	info, err := os.Stat(path)
	must(t, err, second.Close(), os.Remove(path), os.WriteFile(path, []byte("precious"), 0o600))
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode: got %v, want 0600", info.Mode())
	}
	if _, err := ListenUnix(t.Context(), path); err == nil {
		t.Error("listen on a regular file: got nil, want an error")
	}
	if got, _ := os.ReadFile(path); string(got) != "precious" {
		t.Errorf("file content: got %q", got)
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	return ln
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			t.Fatalf("timeout waiting: %s", what)
		case <-tick.C:
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
