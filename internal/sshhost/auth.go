// SPDX-License-Identifier: Apache-2.0

package sshhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"
)

// auth collects the operator's keys: the target's identity file, or else the SSH agent's keys and the usual
// files. The caller closes the result.
func (s *Hosts) auth(ctx context.Context, t Target) (*keys, error) {
	if t.IdentityFile != "" {
		path := t.IdentityFile
		if below, ok := strings.CutPrefix(path, "~/"); ok {
			path = filepath.Join(s.cfg.Home, below)
		}
		signer, err := readKey(path)
		var locked *ssh.PassphraseMissingError
		if err != nil && !(errors.As(err, &locked) && s.cfg.AgentSocket != "") {
			return nil, err
		}
		if err == nil {
			return &keys{signers: []ssh.Signer{signer}}, nil
		}
	}
	k := &keys{}
	if s.cfg.AgentSocket != "" {
		k.addAgent(ctx, s.cfg.AgentSocket, min(s.cfg.Timeout/3, listTimeout))
	}
	for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
		signer, err := readKey(filepath.Join(s.cfg.Home, ".ssh", name))
		if err == nil {
			k.signers = append(k.signers, signer)
		}
	}
	if len(k.signers) > 0 {
		return k, nil
	}
	defer k.close()
	if err := k.agentErr(); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("find SSH key: none found: add one to an SSH agent with ssh-add, create %s, or set spec.ssh.identityFile",
		filepath.Join(s.cfg.Home, ".ssh", "id_ed25519"))
}

// readKey reads an unencrypted private key.
func readKey(path string) (ssh.Signer, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read key: %w: correct identityFile", err)
		}
		return nil, fmt.Errorf("read key: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(text)
	var locked *ssh.PassphraseMissingError
	switch {
	case errors.As(err, &locked):
		return nil, fmt.Errorf("read key %s: it is encrypted: add it to an SSH agent with ssh-add: %w", path, err)
	case err != nil:
		return nil, fmt.Errorf("read key %s: not a valid private key", path) // without the parser's error, which may quote the file
	}
	return signer, nil
}

var errNoKeyAccepted = errors.New("no key accepted")

// explainLogin replaces the SSH library's login errors with ones that say what to do.
func explainLogin(err error, t Target) error {
	if strings.Contains(err.Error(), "unable to authenticate") {
		return fmt.Errorf("log in as %s at %s: %w: add your public key to that user's ~/.ssh/authorized_keys, or set spec.ssh.identityFile", t.user(), t.address(), errNoKeyAccepted)
	}
	var unknown *UnknownKeyError
	var changed *ChangedKeyError
	var other *PinError
	switch { // without the library's "handshake failed" prefix
	case errors.As(err, &unknown):
		return unknown
	case errors.As(err, &changed):
		return changed
	case errors.As(err, &other):
		return other
	}
	return err
}

// keys are the keys for one login. The SSH agent's keys sign over a connection that may hang at any time; it
// ends with the login's context.
type keys struct {
	signers []ssh.Signer
	socket  string     // the agent's; empty if it is not used
	conn    *agentConn // nil unless the agent answered
	release func() bool
	err     error // why the agent's keys are not available
}

// listTimeout limits listing the agent's keys, which needs no user interaction. A signature may need it, so
// it has no limit.
const listTimeout = 3 * time.Second

// addAgent adds the agent's keys. It records an error instead of returning it, because other keys may do.
func (k *keys) addAgent(ctx context.Context, socket string, timeout time.Duration) {
	k.socket = socket
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(limited, "unix", socket)
	if err != nil {
		k.err = err
		return
	}
	k.conn = &agentConn{Conn: conn}
	ended := context.AfterFunc(limited, k.conn.interrupt)
	signers, err := agent.NewClient(k.conn).Signers()
	if !ended() || err != nil {
		k.err = errors.Join(err, context.Cause(limited))
		k.close()
		return
	}
	k.signers = append(k.signers, signers...)
	k.release = context.AfterFunc(ctx, k.conn.interrupt)
}

// close ends the connection to the SSH agent.
func (k *keys) close() {
	if k.release != nil {
		k.release()
	}
	if k.conn != nil {
		_ = k.conn.Close()
	}
}

// agentErr is the reason why the agent's keys could not be used, nil if they could.
func (k *keys) agentErr() error {
	err := k.err
	if err == nil && k.conn != nil {
		err = k.conn.failed()
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("SSH agent at SSH_AUTH_SOCK=%s does not answer: check it with ssh-add -l, unset SSH_AUTH_SOCK, or set spec.ssh.identityFile: %w", k.socket, err)
}

// agentConn is a connection to the SSH agent that records whether a request failed.
type agentConn struct {
	net.Conn

	mu      sync.Mutex // guards the fields below
	pending bool       // a request has no answer yet
	err     error
}

func (w *agentConn) Write(p []byte) (int, error) {
	w.mu.Lock()
	w.pending = true
	w.mu.Unlock()
	return w.Conn.Write(p)
}

func (w *agentConn) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && w.pending {
		w.err = err
	}
	w.pending = w.pending && n == 0
	return n, err
}

// interrupt makes blocked reads and writes fail.
func (w *agentConn) interrupt() { _ = w.SetDeadline(time.Unix(1, 0)) }

// failed is the error of the last request, nil if all were answered.
func (w *agentConn) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// hostKeyCheck is a set of host key algorithms to request, and the check of the key.
type hostKeyCheck struct {
	call       ssh.HostKeyCallback
	algorithms []string
}

// UnknownKeyError reports a host key that is in no known_hosts file.
type UnknownKeyError struct{ Host, Fingerprint, Type string }

func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("unknown host key: %s has the %s key %s: compare it with ssh-keygen -lf on the machine's console, then add it to known_hosts with --accept-new-host-keys "+
		"or pin it with ssh: {hostKey: %q}", e.Host, e.Type, e.Fingerprint, e.Fingerprint)
}

// ChangedKeyError reports a host key that differs from the one in known_hosts. Position is FILE:LINE.
type ChangedKeyError struct{ Host, Fingerprint, Position string }

func (e *ChangedKeyError) Error() string {
	return fmt.Sprintf("host key has changed: %s has %s, but %s has a different key: this may be a man-in-the-middle attack; if the machine was reinstalled, remove the old key with ssh-keygen -R %s",
		e.Host, e.Fingerprint, e.Position, e.Host)
}

// PinError reports a host key that differs from the one in the spec.
type PinError struct{ Host, Fingerprint, Pinned string }

func (e *PinError) Error() string {
	return fmt.Sprintf("host key does not match: %s has %s, but ssh.hostKey is %s: correct the spec, or check which machine answers at this address", e.Host, e.Fingerprint, e.Pinned)
}

// types lists the host key types, the preferred one first.
func types() []string {
	return []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSA}
}

// algorithmsOf lists the signature algorithms for a host key type. RSA with SHA-1 is not supported.
func algorithmsOf(keyType string) []string {
	if keyType == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return []string{keyType}
}

// checks lists what to try, in order, until the server presents the pinned key: a server presents one key per
// connection.
func (s *Hosts) checks(t Target) []hostKeyCheck {
	if t.HostKey == "" {
		return []hostKeyCheck{{s.known, s.algorithms(t)}}
	}
	pin := func(want string) ssh.HostKeyCallback {
		return func(host string, _ net.Addr, key ssh.PublicKey) error {
			if got := ssh.FingerprintSHA256(key); got != want {
				return &PinError{host, got, want}
			}
			return nil
		}
	}
	if key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(t.HostKey)); err == nil {
		return []hostKeyCheck{{pin(ssh.FingerprintSHA256(key)), algorithmsOf(key.Type())}}
	}
	var all []hostKeyCheck
	for _, kind := range types() {
		all = append(all, hostKeyCheck{pin(t.HostKey), algorithmsOf(kind)})
	}
	return all
}

func (s *Hosts) knownFile() string { return filepath.Join(s.cfg.Home, ".ssh", "known_hosts") }

// database reads the known_hosts files that exist.
func (s *Hosts) database() (ssh.HostKeyCallback, error) {
	var files []string
	for _, f := range []string{s.knownFile(), "/etc/ssh/ssh_known_hosts"} {
		if _, err := os.Stat(f); err == nil {
			files = append(files, f)
		}
	}
	db, err := knownhosts.New(files...)
	if err != nil {
		return nil, fmt.Errorf("read known host keys: %w", err)
	}
	return db, nil
}

// known checks a host key against known_hosts. With AcceptNew it adds an unknown one.
func (s *Hosts) known(host string, remote net.Addr, key ssh.PublicKey) error {
	s.keys.Lock()
	defer s.keys.Unlock()
	db, err := s.database()
	if err != nil {
		return err
	}
	err = db(host, remote, key)
	var no *knownhosts.KeyError
	switch {
	case err == nil || !errors.As(err, &no):
		return err
	case len(no.Want) > 0:
		return &ChangedKeyError{knownhosts.Normalize(host), ssh.FingerprintSHA256(key), fmt.Sprintf("%s:%d", no.Want[0].Filename, no.Want[0].Line)}
	case s.cfg.AcceptNew:
		return s.learn(host, key)
	}
	return &UnknownKeyError{knownhosts.Normalize(host), ssh.FingerprintSHA256(key), strings.TrimPrefix(key.Type(), "ssh-")}
}

// learn appends a line to known_hosts. It does not replace the file, because other programs write to it, too.
func (s *Hosts) learn(host string, key ssh.PublicKey) error {
	if err := os.MkdirAll(filepath.Dir(s.knownFile()), 0o700); err != nil {
		return fmt.Errorf("save host key: %w", err)
	}
	f, err := os.OpenFile(s.knownFile(), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("save host key: %w", err)
	}
	begin := ""
	if text, err := io.ReadAll(f); err == nil && len(text) > 0 && text[len(text)-1] != '\n' {
		begin = "\n" // the last line has no newline
	}
	_, err = f.WriteString(begin + knownhosts.Line([]string{knownhosts.Normalize(host)}, key) + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("save host key: %w", err)
	}
	s.cfg.Log.Info("host key accepted", "host", host, "fingerprint", ssh.FingerprintSHA256(key))
	return nil
}

// algorithms lists those of the target's known keys, so that the server presents one of these and not another
// of its keys. If none is known, it lists all.
func (s *Hosts) algorithms(t Target) []string {
	no := &knownhosts.KeyError{}
	if db, err := s.database(); err == nil { // the check of the key will report an error
		_ = errors.As(db(t.address(), &net.TCPAddr{}, probeKey{}), &no)
	}
	var out []string
	for _, kind := range types() {
		if len(no.Want) == 0 || slices.ContainsFunc(no.Want, func(k knownhosts.KnownKey) bool { return k.Key.Type() == kind }) {
			out = append(out, algorithmsOf(kind)...)
		}
	}
	return out
}

// probeKey is a key that no host has: the database's error then lists the known keys.
type probeKey struct{}

func (probeKey) Type() string                            { return "probe" }
func (probeKey) Marshal() []byte                         { return []byte("probe") }
func (probeKey) Verify(_ []byte, _ *ssh.Signature) error { return errors.New("not a real key") }
