// SPDX-License-Identifier: Apache-2.0

package sshhost

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"
)

// auth are the operator's keys: the one that the target names, or else the SSH agent's and the usual files. The caller closes them.
func (s *Hosts) auth(ctx context.Context, t Target) (*keys, error) {
	if t.IdentityFile != "" {
		signer, err := readKey(s.expand(t.IdentityFile))
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
		k.ask(ctx, s.cfg.AgentSocket, min(s.cfg.Patience/3, listPatience))
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
	if err := k.trouble(); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("no key to log in with: start an SSH agent and ssh-add one, put one at %s, or name spec.ssh.identityFile",
		filepath.Join(s.cfg.Home, ".ssh", "id_ed25519"))
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

var errNoKeyAccepted = errors.New("no key was accepted")

// plainLogin says in words what the library says of a login.
func plainLogin(err error, t Target) error {
	if strings.Contains(err.Error(), "unable to authenticate") {
		return fmt.Errorf("user %s at %s: %w: put the public key into that user's ~/.ssh/authorized_keys, or choose another with spec.ssh.identityFile", t.user(), t.address(), errNoKeyAccepted)
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
