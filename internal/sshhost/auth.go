// SPDX-License-Identifier: Apache-2.0

package sshhost

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// auth are the operator's keys: the one that the target names, or else the SSH agent's and the usual files. The agent's connection
// is closed by the caller.
func (s *Hosts) auth(ctx context.Context, t Target) (methods []ssh.AuthMethod, closeAgent func(), err error) {
	var signers []ssh.Signer
	closeAgent = func() {}
	if t.IdentityFile != "" {
		signer, err := readKey(s.expand(t.IdentityFile))
		var locked *ssh.PassphraseMissingError
		if err != nil && !(errors.As(err, &locked) && s.cfg.AgentSocket != "") {
			return nil, nil, err
		}
		if err == nil {
			return []ssh.AuthMethod{ssh.PublicKeys(signer)}, closeAgent, nil
		}
	}
	if s.cfg.AgentSocket != "" {
		var d net.Dialer
		if conn, err := d.DialContext(ctx, "unix", s.cfg.AgentSocket); err == nil {
			closeAgent = func() { _ = conn.Close() }
			signers, _ = agent.NewClient(conn).Signers() // one that is silent has no keys
		}
	}
	for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
		signer, err := readKey(filepath.Join(s.cfg.Home, ".ssh", name))
		if err == nil {
			signers = append(signers, signer)
		}
	}
	if len(signers) == 0 {
		return nil, nil, fmt.Errorf("no key to log in with: start an SSH agent and ssh-add one, put one at %s, or name spec.ssh.identityFile",
			filepath.Join(s.cfg.Home, ".ssh", "id_ed25519"))
	}
	return []ssh.AuthMethod{ssh.PublicKeys(signers...)}, closeAgent, nil
}

func (s *Hosts) expand(path string) string {
	if below, ok := strings.CutPrefix(path, "~/"); ok {
		return filepath.Join(s.cfg.Home, below)
	}
	return path
}

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
		return nil, fmt.Errorf("read key %s: it has a passphrase, which slipway does not ask for: unlock it with ssh-add: %w", path, err)
	case err != nil:
		return nil, fmt.Errorf("read key %s: no private key that can be read", path) // not what the parser says: it may quote the file
	}
	return signer, nil
}

// plainLogin says in words what the library says of a login.
func plainLogin(err error, t Target) error {
	if strings.Contains(err.Error(), "unable to authenticate") {
		return fmt.Errorf("user %s at %s: no key was accepted: put the public key into that user's ~/.ssh/authorized_keys, or choose another with spec.ssh.identityFile", t.user(), t.address())
	}
	var unknown *UnknownKeyError
	var changed *ChangedKeyError
	var other *PinError
	switch { // without the library's "handshake failed"
	case errors.As(err, &unknown):
		return unknown
	case errors.As(err, &changed):
		return changed
	case errors.As(err, &other):
		return other
	}
	return err
}
