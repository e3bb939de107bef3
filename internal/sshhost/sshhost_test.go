// SPDX-License-Identifier: Apache-2.0

package sshhost

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/testkit"
)

func TestUnknownHostKey(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	target := s.target(t)
	err := s.hosts(t, false).At(target).Connect(t.Context())
	var unknown *UnknownKeyError
	if !errors.As(err, &unknown) || !strings.Contains(err.Error(), s.fingerprint(t, "ed25519")) || !strings.Contains(err.Error(), "--accept-new-host-keys") {
		t.Fatalf("got error %v", err)
	}
	if _, err := os.Stat(s.path("known_hosts")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("known_hosts was written: %v", err)
	}
	if err := s.hosts(t, true).At(target).Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.hosts(t, false).At(target).Connect(t.Context()); err != nil {
		t.Errorf("connect with a key in known_hosts: got %v", err)
	}
	// The server now has only its other key, which is not the known one.
	if err := os.Rename(filepath.Join(s.dir, "host_ecdsa"), filepath.Join(s.dir, "host_ed25519")); err != nil {
		t.Fatal(err)
	}
	keygen(t, "ecdsa", filepath.Join(s.dir, "host_ecdsa"))
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.run(t)
	// AcceptNew does not accept changed keys.
	err = s.hosts(t, true).At(target).Connect(t.Context())
	if err == nil || !strings.Contains(err.Error(), "ssh-keygen -R") {
		t.Fatalf("server with a key of another type: got %v", err)
	}
	// A different key of the same type.
	for _, name := range []string{"host_ed25519", "host_ed25519.pub"} {
		if err := os.Remove(filepath.Join(s.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	keygen(t, "ed25519", filepath.Join(s.dir, "host_ed25519"))
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.run(t)
	err = s.hosts(t, true).At(target).Connect(t.Context())
	var changed *ChangedKeyError
	if !errors.As(err, &changed) || !strings.Contains(changed.Position, "known_hosts:1") {
		t.Errorf("changed key: got %v", err)
	}
}

func TestPinnedHostKey(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	public, err := os.ReadFile(filepath.Join(s.dir, "host_ecdsa.pub"))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		pin string
		ok  bool
	}{
		"fingerprint":         {s.fingerprint(t, "ed25519"), true},
		"of another type":     {s.fingerprint(t, "ecdsa"), true},
		"public key":          {string(public), true},
		"unknown fingerprint": {"SHA256:" + strings.Repeat("A", 43), false},
	} {
		target := s.target(t)
		target.HostKey = tc.pin
		err := s.hosts(t, true).At(target).Connect(t.Context())
		if (err == nil) != tc.ok {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := os.Stat(s.path("known_hosts")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a pinned key was written to known_hosts: %v", err)
	}
}

func TestLoginErrors(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	target := s.target(t)
	if err := os.WriteFile(filepath.Join(s.dir, "authorized"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.hosts(t, true).At(target).Connect(t.Context()); err == nil || !strings.Contains(err.Error(), "authorized_keys") {
		t.Errorf("unauthorized key: got %v", err)
	}
	target.IdentityFile = "~/.ssh/other"
	if err := s.hosts(t, true).At(target).Connect(t.Context()); err == nil || !strings.Contains(err.Error(), "correct identityFile") {
		t.Errorf("missing key file: got %v", err)
	}
	target = s.target(t)
	target.Port = freePort(t)
	if err := s.hosts(t, true).At(target).Connect(t.Context()); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("no server: got %v", err)
	}
}

func TestJumpHost(t *testing.T) {
	t.Parallel()
	gate, s := startServer(t), startServer(t)
	target := s.target(t)
	target.Jump = Jump{Host: "127.0.0.1", Port: gate.port}
	key, err := os.ReadFile(filepath.Join(s.home, ".ssh", "id_ed25519.pub"))
	if err != nil {
		t.Fatal(err)
	}
	err = s.hosts(t, true).At(target).Connect(t.Context())
	if err == nil || !strings.Contains(err.Error(), "jump host") {
		t.Fatalf("unauthorized at the jump host: got %v", err)
	}
	if err := os.WriteFile(filepath.Join(gate.dir, "authorized"), key, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := s.hosts(t, true).At(target).Output(t.Context(), `echo "$1"`, "it's there")
	if err != nil || string(out) != "it's there\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestRunPassesCodeArgumentsAndInput(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	h := s.hosts(t, true).At(s.target(t))
	var out bytes.Buffer
	code, err := h.Run(t.Context(), Command{Script: `cat; printf '%s|' "$@"; exit 7`, Args: []string{"a b", "$HOME", `"'`}, Stdin: strings.NewReader("in "), Stdout: &out})
	if err != nil || code != 7 || out.String() != `in a b|$HOME|"'|` {
		t.Errorf("got code %d, %q, %v", code, out.String(), err)
	}
	_, err = h.Output(t.Context(), "echo no such thing >&2; exit 3")
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Code != 3 || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("got error %v", err)
	}
}

func TestSendIsAtomic(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	h := s.hosts(t, true).At(s.target(t))
	content := make([]byte, 3<<20)
	_, _ = rand.Read(content)
	sum := sha256.Sum256(content)
	f := File{
		Path: filepath.Join(t.TempDir(), "deep", "file"), SHA256: hex.EncodeToString(sum[:]), Size: int64(len(content)), Mode: 0o755,
		Open: func() (io.ReadSeekCloser, error) { return readSeeker{bytes.NewReader(content)}, nil },
	}
	wrong := bytes.Clone(content)
	wrong[len(wrong)-1]++
	bad := f
	bad.Open = func() (io.ReadSeekCloser, error) { return readSeeker{bytes.NewReader(wrong)}, nil }
	if err := h.Send(t.Context(), bad, func(int64) {}); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("damaged upload: got %v", err)
	}
	if left := parts(t, f); len(left) > 0 {
		t.Errorf("the damaged part was not removed: %v", left)
	}
	if err := h.Send(t.Context(), f, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(f.Path)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("wrong file content: %v", err)
	}
	if info, err := os.Stat(f.Path); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode: got %v, %v", info.Mode(), err)
	}
	if left := parts(t, f); len(left) > 0 {
		t.Errorf("leftover parts: %v", left)
	}
}

// parts lists the incomplete uploads next to a file.
func parts(t *testing.T, f File) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(filepath.Dir(f.Path), ".slipway-*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// A part is continued only if it is the start of the file.
func TestSendContinuesValidPart(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	h := s.hosts(t, true).At(s.target(t))
	content := make([]byte, 3<<20)
	_, _ = rand.Read(content)
	const half = 1 << 20
	zeroed := bytes.Clone(content[:half])
	clear(zeroed[half-4096:]) // as after a power cut
	for name, tc := range map[string]struct {
		there []byte
		from  int64
	}{
		"no part":           {nil, 0},
		"start of the file": {content[:half], half},
		"complete":          {content, 3 << 20},
		"damaged":           {zeroed, 0},
		"too long":          {append(bytes.Clone(content), 'x'), 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := fileOf(t, content)
			if tc.there != nil {
				if err := os.WriteFile(filepath.Join(filepath.Dir(f.Path), ".slipway-"+f.SHA256+".part"), tc.there, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			from := int64(-1)
			err := h.Send(t.Context(), f, func(n int64) {
				if from < 0 {
					from = n
				}
			})
			if err != nil || from != tc.from {
				t.Errorf("offset: got %d, want %d; %v", from, tc.from, err)
			}
			if got, err := os.ReadFile(f.Path); err != nil || !bytes.Equal(got, content) {
				t.Errorf("wrong file content: %v", err)
			}
			if left := parts(t, f); len(left) > 0 {
				t.Errorf("leftover parts: %v", left)
			}
		})
	}
}

func fileOf(t *testing.T, content []byte) File {
	t.Helper()
	sum := sha256.Sum256(content)
	return File{
		Path: filepath.Join(t.TempDir(), "file"), SHA256: hex.EncodeToString(sum[:]), Size: int64(len(content)), Mode: 0o755,
		Open: func() (io.ReadSeekCloser, error) { return readSeeker{bytes.NewReader(content)}, nil },
	}
}

// An upload continues after its connection was lost.
func TestSendContinuesAfterLostConnection(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	h := s.hosts(t, true).At(s.target(t))
	content := make([]byte, 8<<20)
	_, _ = rand.Read(content)
	f := fileOf(t, content)
	part := filepath.Join(filepath.Dir(f.Path), ".slipway-"+f.SHA256+".part")
	broken := f
	broken.Open = func() (io.ReadSeekCloser, error) {
		return &breaking{readSeeker{bytes.NewReader(content[:4<<20])}, func() {
			defer h.drop()
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for info, err := os.Stat(part); err != nil || info.Size() < 1<<20; info, err = os.Stat(part) {
				select {
				case <-tick.C:
				case <-t.Context().Done():
					return
				}
			}
		}}, nil
	}
	if err := h.Send(t.Context(), broken, func(int64) {}); err == nil {
		t.Fatal("interrupted upload: got nil, want an error")
	}
	if _, err := os.Stat(part); err != nil {
		t.Fatalf("the part is gone: %v", err)
	}
	from := int64(-1)
	err := h.Send(t.Context(), f, func(n int64) {
		if from < 0 {
			from = n
		}
	})
	if err != nil || from < 1<<20 {
		t.Errorf("offset: got %d; %v", from, err)
	}
	if got, err := os.ReadFile(f.Path); err != nil || !bytes.Equal(got, content) {
		t.Errorf("wrong file content: %v", err)
	}
}

// Two concurrent writers of one file, one of them abandoned, do not disturb each other.
func TestConcurrentWriters(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
	half := len(content) / 2
	for name, tc := range map[string]struct {
		order  []int // in which the writers 0 and 1 finish
		broken bool  // writer 0 gets only half of the input
		codes  [2]int
	}{
		"first finishes first":      {order: []int{0, 1}},
		"first finishes last":       {order: []int{1, 0}},
		"first is interrupted":      {order: []int{0, 1}, broken: true, codes: [2]int{46, 0}},
		"first is interrupted last": {order: []int{1, 0}, broken: true, codes: [2]int{46, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fileOf(t, content)
			part := filepath.Join(filepath.Dir(f.Path), ".slipway-"+f.SHA256+".part")
			for _, stale := range []string{".new", ".999999999"} {
				if err := os.WriteFile(part+stale, content[:half], 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var writers [2]*exec.Cmd
			var inputs [2]io.WriteCloser
			for i := range writers {
				cmd := exec.CommandContext(t.Context(), "sh", "-c", finishScript, "slipway", f.Path, f.SHA256, "755", strconv.Itoa(i*half), strconv.Itoa(len(content)))
				in, err := cmd.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				writers[i], inputs[i] = cmd, in
				if i == 0 {
					if _, err := in.Write(content[:half]); err != nil {
						t.Fatal(err)
					}
					testkit.Eventually(t, "the transfer", func() bool { info, err := os.Stat(part); return err == nil && info.Size() == int64(half) })
				}
			}
			// The second writer has its copy once the part is a link to it.
			testkit.Eventually(t, "the transfer", func() bool { return sameFile(part, part+"."+strconv.Itoa(writers[1].Process.Pid)) })
			for _, i := range tc.order {
				if i == 1 || !tc.broken {
					if _, err := inputs[i].Write(content[half:]); err != nil {
						t.Error(err)
					}
				}
				if err := inputs[i].Close(); err != nil {
					t.Error(err)
				}
				_ = writers[i].Wait()
				if got := writers[i].ProcessState.ExitCode(); got != tc.codes[i] {
					t.Errorf("writer %d: got exit code %d, want %d", i, got, tc.codes[i])
				}
				info, err := os.Stat(f.Path)
				if tc.codes[i] == 0 && (err != nil || info.Mode().Perm() != 0o755 || info.Size() != f.Size) {
					t.Errorf("after writer %d: got %v, %v", i, info, err)
				}
			}
			if got, err := os.ReadFile(f.Path); err != nil || !bytes.Equal(got, content) {
				t.Errorf("wrong file content: %v", err)
			}
			if left := parts(t, f); len(left) > 0 {
				t.Errorf("leftover parts: %v", left)
			}
		})
	}
}

func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// breaking calls a function when everything has been read, before it returns io.EOF.
type breaking struct {
	readSeeker
	end func()
}

func (b *breaking) Read(p []byte) (int, error) {
	n, err := b.readSeeker.Read(p)
	if errors.Is(err, io.EOF) {
		b.end()
	}
	return n, err
}

type readSeeker struct{ *bytes.Reader }

func (readSeeker) Close() error { return nil }

func TestReadAndWrite(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	h := s.hosts(t, true).At(s.target(t))
	path := filepath.Join(t.TempDir(), "a directory", "secret")
	if _, err := h.Read(t.Context(), path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: got %v", err)
	}
	for i, want := range []bool{true, false} {
		changed, err := h.Write(t.Context(), path, 0o600, []byte("x\ny"))
		if err != nil || changed != want {
			t.Errorf("write %d: got changed=%t, %v", i, changed, err)
		}
	}
	got, err := h.Read(t.Context(), path)
	if err != nil || string(got) != "x\ny" {
		t.Errorf("got %q, %v", got, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode: %v, %v", info.Mode(), err)
	}
}

func TestDial(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	h := s.hosts(t, true).At(s.target(t))
	path := filepath.Join(s.dir, "sock")
	if conn, err := h.Dial(t.Context(), path); err == nil {
		conn.Close()
		t.Error("dial a missing socket: got nil, want an error")
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	conn, err := h.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	back := make([]byte, 5)
	if _, err := io.ReadFull(conn, back); err != nil || string(back) != "hello" {
		t.Errorf("got %q, %v", back, err)
	}
	if err := conn.SetReadDeadline(time.Now()); err != nil {
		t.Errorf("set deadline: got %v", err)
	}
	if _, err := conn.Read(back); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after the deadline: got %v", err)
	}
}

// The next call after a lost connection reconnects.
func TestReconnects(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	h := s.hosts(t, true).At(s.target(t))
	if _, err := h.Output(t.Context(), "true"); err != nil {
		t.Fatal(err)
	}
	first := h.live()
	_ = first.Close()
	_ = first.Wait()
	for begun := time.Now(); h.live() == first; {
		if time.Since(begun) > 10*time.Second {
			t.Fatal("a closed connection is kept")
		}
	}
	if _, err := h.Output(t.Context(), "true"); err != nil {
		t.Error(err)
	}
}

func TestCommandLineOfAnotherUser(t *testing.T) {
	t.Parallel()
	h := &Host{Target: Target{User: "admin"}}
	if got, want := h.commandLine(Command{Script: "echo 'x'", Args: []string{"a'b"}}), `exec env LC_ALL=C sudo -n -- sh -c 'echo '\''x'\''' slipway 'a'\''b'`; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for want, tc := range map[string]struct {
		target  Target
		tty     bool
		command []string
	}{
		"ssh root@192.0.2.1":                  {Target{Host: "192.0.2.1", Port: 22}, false, nil},
		"ssh root@192.0.2.1 'ps ax'":          {Target{Host: "192.0.2.1"}, false, []string{"ps", "ax"}},
		"ssh -t root@192.0.2.1 'top'":         {Target{Host: "192.0.2.1"}, true, []string{"top"}},
		`ssh root@192.0.2.1 'ls '\''a b'\'''`: {Target{Host: "192.0.2.1"}, false, []string{"ls", "a b"}},
		`ssh root@192.0.2.1 'echo '\'''\'''`:  {Target{Host: "192.0.2.1"}, false, []string{"echo", ""}},
		"ssh ann@192.0.2.1 'sudo ps'":         {Target{Host: "192.0.2.1", User: "ann"}, false, []string{"ps"}},
		`ssh ann@192.0.2.1 'sudo sh -c '\''cd /etc; echo "$1" | wc'\'''`: {
			Target{Host: "192.0.2.1", User: "ann"}, false, []string{"sh", "-c", `cd /etc; echo "$1" | wc`},
		},
		"ssh -p 2222 -i ~/.ssh/k -J ops@gate:22 ann@192.0.2.1": {
			Target{Host: "192.0.2.1", User: "ann", Port: 2222, IdentityFile: "~/.ssh/k", Jump: Jump{User: "ops", Host: "gate"}}, false, nil,
		},
	} {
		if got := tc.target.CommandLine(tc.tty, tc.command...); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}
