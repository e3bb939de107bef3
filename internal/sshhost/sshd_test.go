// SPDX-License-Identifier: Apache-2.0

package sshhost

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// server is a real sshd on the loopback interface for this test.
type server struct {
	dir  string
	port int
	home string // home directory of an operator who may log in
	cmd  *exec.Cmd
}

const sshd = "/usr/sbin/sshd"

func startServer(t *testing.T) *server {
	t.Helper()
	if _, err := os.Stat(sshd); err != nil {
		t.Skipf("needs an SSH server (run make preflight): %v", err)
	}
	s := &server{dir: t.TempDir(), home: t.TempDir(), port: freePort(t)}
	if err := errors.Join(os.Mkdir(filepath.Join(s.home, ".ssh"), 0o700), os.MkdirAll("/run/sshd", 0o755)); err != nil {
		t.Skipf("sshd needs /run/sshd, which only root makes: %v", err)
	}
	for _, kind := range []string{"ed25519", "ecdsa"} {
		keygen(t, kind, filepath.Join(s.dir, "host_"+kind))
	}
	keygen(t, "ed25519", s.path("id_ed25519"))
	public, err := os.ReadFile(s.path("id_ed25519.pub"))
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("Port %d\nListenAddress 127.0.0.1\nHostKey %[2]s/host_ed25519\nHostKey %[2]s/host_ecdsa\nAuthorizedKeysFile %[2]s/authorized\n"+
		"PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nAllowStreamLocalForwarding yes\nAllowTcpForwarding yes\n", s.port, s.dir)
	for name, text := range map[string]string{"config": config, "authorized": string(public)} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.run(t)
	return s
}

func (s *server) path(name string) string { return filepath.Join(s.home, ".ssh", name) }

func (s *server) run(t *testing.T) {
	t.Helper()
	s.cmd = exec.Command(sshd, "-D", "-e", "-f", filepath.Join(s.dir, "config"))                           // killed below, with its children
	stderr, err := os.OpenFile(filepath.Join(s.dir, "stderr"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) // a file, because a pipe would wait for its sessions
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	s.cmd.Stderr = stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd := s.cmd
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for begun := time.Now(); ; {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(s.port)))
		if err == nil {
			conn.Close()
			return
		}
		if time.Since(begun) > 20*time.Second {
			text, _ := os.ReadFile(stderr.Name())
			t.Fatalf("sshd is not listening: %v\n%s", err, text)
		}
	}
}

func (s *server) target(t *testing.T) Target {
	t.Helper()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if me.Username != Root {
		t.Skip("scripts run as root on the far side, which is this host: it takes root")
	}
	return Target{Name: "far", Host: "127.0.0.1", Port: s.port, User: me.Username}
}

func (s *server) hosts(t *testing.T, accept bool) *Hosts {
	t.Helper()
	all := New(Config{Home: s.home, AcceptNew: accept, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(all.Close)
	return all
}

func (s *server) fingerprint(t *testing.T, kind string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-l", "-f", filepath.Join(s.dir, "host_"+kind+".pub")).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))[1]
}

func keygen(t *testing.T, kind, path string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v\n%s", err, out)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}
