// SPDX-License-Identifier: Apache-2.0

package sshhost

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// hostKeyCheck is one way to ask a server for its key, and to judge it.
type hostKeyCheck struct {
	call       ssh.HostKeyCallback
	algorithms []string
}

// UnknownKeyError says that nobody has vouched for a server's key yet.
type UnknownKeyError struct{ Host, Fingerprint, Type string }

func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("its host key is not known: %s shows the %s key %s: compare it with ssh-keygen -lf on the machine's console; then --accept-new-host-keys writes it to known_hosts, "+
		"or pin it with ssh: {hostKey: %q}", e.Host, e.Type, e.Fingerprint, e.Fingerprint)
}

// ChangedKeyError says that a server shows another key than it had.
type ChangedKeyError struct{ Host, Fingerprint, Place string }

func (e *ChangedKeyError) Error() string {
	return fmt.Sprintf("its host key has changed: %s shows %s, and %s has another: somebody may be in between; if the machine was made anew, remove the old key with ssh-keygen -R %s",
		e.Host, e.Fingerprint, e.Place, e.Host)
}

// PinError says that a server's key is not the one that the spec pins.
type PinError struct{ Host, Fingerprint, Pinned string }

func (e *PinError) Error() string {
	return fmt.Sprintf("its host key is another: %s shows %s, and ssh.hostKey pins %s: correct the spec, or find out who answers there", e.Host, e.Fingerprint, e.Pinned)
}

// types of host keys, the usual one first. Old RSA signatures (SHA-1) are not among them.
func types() []string {
	return []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSA}
}

// algorithmsOf are the signatures by which a server proves a key of that type.
func algorithmsOf(keyType string) []string {
	if keyType == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return []string{keyType}
}

// checks are tried in their order as long as the server has another key than the pinned one: it shows one key at a time.
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

// database reads the files of known keys that there are.
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

// known asks the operator's files. A new key is added there if the operator wants that.
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

// learn appends a line, as ssh does: the file is the operator's, and others write it too.
func (s *Hosts) learn(host string, key ssh.PublicKey) error {
	if err := os.MkdirAll(filepath.Dir(s.knownFile()), 0o700); err != nil {
		return fmt.Errorf("keep host key: %w", err)
	}
	f, err := os.OpenFile(s.knownFile(), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("keep host key: %w", err)
	}
	begin := ""
	if text, err := io.ReadAll(f); err == nil && len(text) > 0 && text[len(text)-1] != '\n' {
		begin = "\n" // its last line was written by hand
	}
	_, err = f.WriteString(begin + knownhosts.Line([]string{knownhosts.Normalize(host)}, key) + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("keep host key: %w", err)
	}
	s.cfg.Log.Info("host key accepted", "host", host, "fingerprint", ssh.FingerprintSHA256(key))
	return nil
}

// algorithms are those of the keys that are known of the target, so that the server shows one of these and not another one that it
// also has. Nothing known: any, the usual one first.
func (s *Hosts) algorithms(t Target) []string {
	no := &knownhosts.KeyError{}
	if db, err := s.database(); err == nil { // the check itself will say so
		_ = errors.As(db(t.address(), &net.TCPAddr{}, nobody{}), &no)
	}
	var out []string
	for _, kind := range types() {
		if len(no.Want) == 0 || slices.ContainsFunc(no.Want, func(k knownhosts.KnownKey) bool { return k.Key.Type() == kind }) {
			out = append(out, algorithmsOf(kind)...)
		}
	}
	return out
}

// nobody is a key that no host has: the database answers with those that it knows.
type nobody struct{}

func (nobody) Type() string                            { return "nobody" }
func (nobody) Marshal() []byte                         { return []byte("nobody") }
func (nobody) Verify(_ []byte, _ *ssh.Signature) error { return errors.New("nobody signs") }
