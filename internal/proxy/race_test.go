// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// backend is a control plane's socket and how it behaves.
type backend struct {
	path     string
	accepted atomic.Int64
}

// newBackend serves a socket until the test ends. With a nil function the socket does not exist.
func newBackend(t *testing.T, serve func(net.Conn)) *backend {
	t.Helper()
	h := &backend{path: filepath.Join(t.TempDir(), "api.sock")}
	if serve == nil {
		return h
	}
	ln, err := ListenUnix(t.Context(), h.path)
	must(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			h.accepted.Add(1)
			all.Go(func() { defer conn.Close(); serve(conn) })
		}
	})
	t.Cleanup(func() { ln.Close(); all.Wait() })
	return h
}

// Behaviours of a control plane.
func closesAtOnce(net.Conn)             {}
func silent(c net.Conn)                 { _, _ = io.Copy(io.Discard, c) }
func asksAndCloses(c net.Conn)          { _, _ = c.Read(make([]byte, 1)) }
func greets(name string) func(net.Conn) { return func(c net.Conn) { fmt.Fprint(c, name); silent(c) } }

// answers sends its name after the first byte, and then echoes everything it reads.
func echoes(name string) func(net.Conn) {
	return func(c net.Conn) {
		first := make([]byte, 1)
		if _, err := io.ReadFull(c, first); err != nil {
			return
		}
		fmt.Fprint(c, name)
		_, _ = c.Write(first)
		_, _ = io.Copy(c, c)
	}
}

// front serves backends and returns a connected client.
func front(t *testing.T, backends ...*backend) net.Conn {
	t.Helper()
	return frontWithStagger(t, raceAfter, backends...)
}

// frontWithStagger is front with another time between attempts.
func frontWithStagger(t *testing.T, stagger time.Duration, backends ...*backend) net.Conn {
	t.Helper()
	ln := listen(t)
	var paths []string
	for _, h := range backends {
		paths = append(paths, h.path)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, ln, stagger, func() []dialer { return toSockets(paths) }) }()
	conn, err := net.Dial("tcp", ln.Addr().String())
	must(t, err)
	t.Cleanup(func() { cancel(); check(t, <-done); conn.Close() })
	return conn
}

func TestFirstThatAnswers(t *testing.T) {
	t.Parallel()
	const limit = 10 * time.Second            // enough for a busy machine
	const never, usual = 3 * limit, raceAfter // if every backend reacts, only a needless wait exceeds the limit
	tests := map[string]struct {
		backends []func(net.Conn)
		stagger  time.Duration
	}{
		"the first":                    {[]func(net.Conn){echoes("ok"), echoes("second")}, never},
		"no machine":                   {[]func(net.Conn){nil, echoes("ok")}, never},
		"no API server":                {[]func(net.Conn){closesAtOnce, echoes("ok"), echoes("third")}, never},
		"dies on the hello":            {[]func(net.Conn){asksAndCloses, echoes("ok")}, never},
		"several are down":             {[]func(net.Conn){nil, closesAtOnce, nil, asksAndCloses, echoes("ok")}, never},
		"hangs":                        {[]func(net.Conn){silent, echoes("ok")}, usual},
		"hangs, then down":             {[]func(net.Conn){silent, nil, closesAtOnce, echoes("ok")}, usual},
		"down, then hangs":             {[]func(net.Conn){nil, silent, echoes("ok")}, usual},
		"all hang but the last":        {[]func(net.Conn){silent, silent, echoes("ok")}, usual},
		"hangs, and there is no other": {[]func(net.Conn){echoes("ok"), silent}, never},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var backends []*backend
			for _, serve := range tt.backends {
				backends = append(backends, newBackend(t, serve))
			}
			conn := frontWithStagger(t, tt.stagger, backends...)
			_, err := conn.Write([]byte("hello"))
			must(t, err, conn.SetReadDeadline(time.Now().Add(limit)))
			got := make([]byte, len("okhello"))
			_, err = io.ReadFull(conn, got)
			if must(t, err); string(got) != "okhello" {
				t.Errorf("got answer %q", got)
			}
		})
	}
}

func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	conn := front(t, newBackend(t, nil), newBackend(t, closesAtOnce), newBackend(t, asksAndCloses))
	_, err := conn.Write([]byte("hello"))
	must(t, err, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	if got, err := io.ReadAll(conn); len(got) != 0 || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %q, %v", got, err)
	}
}

// A client that has not sent anything yet uses one connection, not one per control plane.
func TestIdleClientIsNotRaced(t *testing.T) {
	t.Parallel()
	first, second := newBackend(t, echoes("first")), newBackend(t, echoes("second"))
	conn := front(t, first, second)
	await(t, "the first has the connection", func() bool { return first.accepted.Load() == 1 })
	idle := time.After(2 * raceAfter)
	<-idle
	if second.accepted.Load() != 0 {
		t.Error("the second backend got a connection, too")
	}
	_, err := conn.Write([]byte("x"))
	must(t, err)
	got := make([]byte, 6)
	_, err = io.ReadFull(conn, got)
	if must(t, err); string(got) != "firstx" {
		t.Errorf("got answer %q", got)
	}
}

func TestServerTalksFirstAmongSeveral(t *testing.T) {
	t.Parallel()
	conn := front(t, newBackend(t, nil), newBackend(t, greets("good day")), newBackend(t, greets("other")))
	got := make([]byte, 8)
	_, err := io.ReadFull(conn, got)
	if must(t, err); string(got) != "good day" {
		t.Errorf("got %q", got)
	}
}

// For all sizes and failures before the winner, all bytes arrive once and in order in both directions.
func TestNothingIsLostOrTwice(t *testing.T) {
	t.Parallel()
	for size := 1; size < 1_000_000; size = size*5 + 1 {
		for name, before := range map[string]func(net.Conn){"none": nil, "closes": closesAtOnce, "reads and closes": asksAndCloses} {
			t.Run(fmt.Sprintf("%d after %s", size, name), func(t *testing.T) {
				t.Parallel()
				body := make([]byte, size)
				_, _ = rand.NewChaCha8([32]byte{byte(size)}).Read(body)
				conn := front(t, newBackend(t, before), newBackend(t, echoes("")), newBackend(t, silent))
				go func() {
					for rest := body; len(rest) > 0; {
						n := min(len(rest), 1+rand.IntN(20000))
						if _, err := conn.Write(rest[:n]); err != nil {
							return
						}
						rest = rest[n:]
					}
				}()
				got := make([]byte, size)
				_, err := io.ReadFull(conn, got)
				if must(t, err); !bytes.Equal(got, body) {
					t.Error("the echo differs from the request")
				}
			})
		}
	}
}

// A request that gets no answer before its end goes to one backend completely, whatever its size.
func TestHalfCloseAmongSeveral(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, maxHead - 1, maxHead, maxHead + 1, 3 * maxHead} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			sums := func(c net.Conn) {
				sum := sha256.New()
				n, err := io.Copy(sum, c)
				fmt.Fprintf(c, "%d %v %x", n, err, sum.Sum(nil))
			}
			conn := front(t, newBackend(t, nil), newBackend(t, sums), newBackend(t, silent))
			body := bytes.Repeat([]byte("s"), size)
			_, err := conn.Write(body)
			must(t, err, conn.(*net.TCPConn).CloseWrite())
			got, err := io.ReadAll(conn)
			if want := fmt.Sprintf("%d <nil> %x", size, sha256.Sum256(body)); string(got) != want || err != nil {
				t.Errorf("got %q, %v; want %q", got, err, want)
			}
		})
	}
}

// A running proxy follows changes of its backends, and keeps its port and process.
func TestRunningProxyFollows(t *testing.T) {
	t.Parallel()
	a, b := newBackend(t, greets("through")), newBackend(t, greets("through"))
	c := Config{Dir: filepath.Join(t.TempDir(), "proxy"), Exe: "/proc/self/exe", Sockets: []string{a.path}, FirstPort: 29443}
	t.Cleanup(func() { check(t, Stop(context.Background(), c)) })
	first := spawn(t, c)
	talks(t, first)
	c.Sockets = []string{b.path, a.path}
	if again := spawn(t, c); again.Started || again.PID != first.PID || again.Addr != first.Addr {
		t.Errorf("second Spawn: got %+v, first %+v", again, first)
	}
	talks(t, first)
	if b.accepted.Load() == 0 {
		t.Error("the new backend got no connection")
	}
	c.Sockets = nil
	if _, err := Spawn(t.Context(), c); err == nil {
		t.Error("Spawn without sockets: got nil, want an error")
	}
	talks(t, first)
}

func talks(t *testing.T, e Endpoint) {
	t.Helper()
	conn, err := net.Dial("tcp", e.Addr.String())
	must(t, err)
	defer conn.Close()
	got := make([]byte, len("through"))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "through" {
		t.Errorf("got %q, %v", got, err)
	}
}
