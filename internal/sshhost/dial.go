// SPDX-License-Identifier: Apache-2.0

package sshhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Dial connects to a unix socket on the machine. sshd does it where the login user is root; elsewhere, and where sshd may not, it
// is a program of ours on the far side.
func (h *Host) Dial(ctx context.Context, socket string) (net.Conn, error) {
	client, err := h.connected(ctx)
	if err != nil {
		return nil, err
	}
	if h.user() == Root {
		far, err := client.DialContext(ctx, "unix", socket)
		if err == nil {
			return joined(far, far.Close), nil
		}
		var refused *ssh.OpenChannelError
		if !errors.As(err, &refused) || refused.Reason != ssh.Prohibited && refused.Reason != ssh.UnknownChannelType {
			return nil, fmt.Errorf("connect to %s of %s: %w", socket, h.Name, err)
		}
	}
	return h.stream(client, socket)
}

// StreamCommand is the hidden command of slipway that joins its standard input and output to a unix socket.
const StreamCommand = "stream"

func (h *Host) stream(client *ssh.Client, socket string) (net.Conn, error) {
	session, err := client.NewSession()
	if err != nil {
		return nil, fmt.Errorf("connect to %s of %s: %w", socket, h.Name, err)
	}
	in, err := session.StdinPipe()
	if err != nil {
		return nil, errors.Join(err, session.Close())
	}
	out, err := session.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, session.Close())
	}
	said := &tail{}
	session.Stderr = said
	line := h.commandLine(Command{Script: `exec "$1" "$2" "$3"`, Args: []string{h.all.cfg.Program, StreamCommand, socket}})
	if err := session.Start(line); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s of %s: %w", socket, h.Name, err), session.Close())
	}
	hello := make([]byte, len(StreamHello))
	if _, err := io.ReadFull(out, hello); err != nil || string(hello) != StreamHello {
		_ = session.Close()
		_ = session.Wait() // then all that it said is there
		return nil, fmt.Errorf("connect to %s of %s: %s", socket, h.Name, strings.TrimSpace(said.text()))
	}
	return joined(struct {
		io.Reader
		io.WriteCloser
	}{out, in}, session.Close), nil
}

// StreamHello is what the far program says when it is connected.
const StreamHello = "slipway-stream\n"

// joined is a connection with deadlines, which a channel of SSH does not have.
func joined(far io.ReadWriteCloser, end func() error) net.Conn {
	near, inner := net.Pipe()
	go func() {
		_, _ = io.Copy(inner, far)
		_ = inner.Close()
		_ = end()
	}()
	go func() {
		_, _ = io.Copy(far, inner)
		_ = inner.Close()
		_ = end()
	}()
	return near
}
