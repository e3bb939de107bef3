// SPDX-License-Identifier: Apache-2.0

package sshhost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// keys are what one login has to offer. Those of the operator's SSH agent sign by asking it, which may be silent at any moment: each
// question ends with the login's context.
type keys struct {
	signers []ssh.Signer
	socket  string // of the agent; empty: it is not asked
	conn    *watched
	release func() bool
	err     error // why the agent is not reached
}

// listPatience is for the agent's list of keys, which takes nobody's hand; a signature may.
const listPatience = 3 * time.Second

// ask adds the agent's keys. One that is silent has none, for there may be others.
func (k *keys) ask(ctx context.Context, socket string, patience time.Duration) {
	k.socket = socket
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(limited, "unix", socket)
	if err != nil {
		k.err = err
		return
	}
	k.conn = &watched{Conn: conn}
	ended := context.AfterFunc(limited, k.conn.end)
	signers, err := agent.NewClient(k.conn).Signers()
	if !ended() || err != nil {
		k.err = errors.Join(err, context.Cause(limited))
		k.close()
		return
	}
	k.signers = append(k.signers, signers...)
	k.release = context.AfterFunc(ctx, k.conn.end)
}

func (k *keys) close() {
	if k.release != nil {
		k.release()
	}
	if k.conn != nil {
		_ = k.conn.Close()
	}
}

// trouble is what was wrong with the agent, nil if nothing was.
func (k *keys) trouble() error {
	err := k.err
	if err == nil && k.conn != nil {
		err = k.conn.failed()
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("the SSH agent at SSH_AUTH_SOCK=%s does not answer: ssh-add -l shows whether it works; without it: unset SSH_AUTH_SOCK, or name spec.ssh.identityFile: %w", k.socket, err)
}

// watched remembers that a question was not answered.
type watched struct {
	net.Conn

	mu    sync.Mutex // guards the fields below
	asked bool
	err   error
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	w.asked = true
	w.mu.Unlock()
	return w.Conn.Write(p)
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && w.asked {
		w.err = err
	}
	w.asked = w.asked && n == 0
	return n, err
}

// end wakes whoever waits for an answer.
func (w *watched) end() { _ = w.SetDeadline(time.Unix(1, 0)) }

func (w *watched) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
