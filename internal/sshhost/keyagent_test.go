// SPDX-License-Identifier: Apache-2.0

package sshhost

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// keyAgent serves keys. After the given number of answers it stops answering and closes a channel.
func keyAgent(t *testing.T, ring agent.Agent, answers int32, silent func()) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "agent")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	left := &atomic.Int32{}
	left.Store(answers)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			go func() { _ = agent.ServeAgent(ring, &limited{conn, left, silent}) }()
		}
	}()
	return socket
}

// limited passes on a number of answers and blocks the rest.
type limited struct {
	net.Conn
	left   *atomic.Int32
	silent func()
}

func (l *limited) Write(p []byte) (int, error) {
	length := len(p) == 4 // precedes each answer
	if l.left.Load() <= 0 {
		l.silent()
		return len(p), nil
	}
	if !length {
		l.left.Add(-1)
	}
	return l.Conn.Write(p)
}

func TestAgentKeys(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	key := readRaw(t, s)
	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		answers int32
		key     any
		home    string        // contains an authorized key
		timeout time.Duration // optional
		cancel  bool          // cancel while waiting for a signature
		want    string
	}{
		"signs":                         {answers: 2, key: key},
		"hangs":                         {key: key, timeout: time.Second, want: "SSH_AUTH_SOCK="},
		"lists, then hangs":             {answers: 1, key: key, cancel: true, want: "SSH_AUTH_SOCK="},
		"hangs, but there is a file":    {key: key, home: s.home},
		"works, but no key is accepted": {answers: 9, key: other, want: "authorized_keys"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ring := agent.NewKeyring()
			if err := ring.Add(agent.AddedKey{PrivateKey: tc.key}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			silent := func() {}
			if tc.cancel {
				silent = cancel
			}
			target := s.target(t)
			target.HostKey = s.fingerprint(t, "ed25519")
			all := New(Config{
				Home: cmp.Or(tc.home, t.TempDir()), AgentSocket: keyAgent(t, ring, tc.answers, silent),
				Timeout: cmp.Or(tc.timeout, 2*time.Minute), Log: slog.New(slog.DiscardHandler), // enough for a busy machine
			})
			defer all.Close()
			err := all.At(target).Connect(ctx)
			switch {
			case tc.want == "" && err != nil, tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got error %v, want %q", err, tc.want)
			case tc.answers == 9 && strings.Contains(err.Error(), "SSH_AUTH_SOCK"):
				t.Errorf("error blames a working agent: %v", err)
			}
		})
	}
}

// readRaw is the operator's private key.
func readRaw(t *testing.T, s *server) any {
	t.Helper()
	text, err := os.ReadFile(s.path("id_ed25519"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.ParseRawPrivateKey(text)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
