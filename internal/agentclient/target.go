// SPDX-License-Identifier: Apache-2.0

package agentclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
)

// Timeout is how long a command waits for an agent to accept a connection: the machine's PID 1 may be restarting it.
const Timeout = 2 * time.Second

// ErrUnreachable means that an agent did not accept a connection within [Timeout].
var ErrUnreachable = errors.New("the agent does not respond")

// Target is a machine whose agent can be asked.
type Target struct {
	Machine string
	Dial    Dialer // nil: the machine is not running
}

// Own is the machine that this program runs on.
func Own() Target { return Target{"this machine", Socket(OwnSocket)} }

// IsSocket reports whether path is a unix socket, so that an agent may be listening there.
func IsSocket(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeSocket != 0
}

// With calls ask with a connection to the agent, and closes it. It fails with [ErrUnreachable] when the agent does not
// accept connections within [Timeout].
func (t Target) With(ctx context.Context, ask func(ctx context.Context, a *Agent) error) error {
	limited, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	conn, err := dialRetrying(limited, t.Dial)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		_, why := t.Dial(ctx)
		return fmt.Errorf("%w: %w: see slipway logs agent --machine %s", ErrUnreachable, cmp.Or(why, err), filepath.Base(t.Machine))
	}
	conn.Close()
	agent, err := Dial(t.Dial)
	if err != nil {
		return err
	}
	defer agent.Close()
	return ask(ctx, agent)
}

// AskControl asks the first target whose control role answers. A worker, or a control plane that is still starting, says that
// it cannot answer; then the next target is asked. Any other answer, including a refusal, is the result.
func AskControl(ctx context.Context, targets []Target, ask func(ctx context.Context, c controlv1.ControlClient) error) error {
	var unavailable []error
	for _, t := range targets {
		err := t.With(ctx, func(ctx context.Context, a *Agent) error { return ask(ctx, a.Control()) })
		code := status.Code(err)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case code == codes.Unimplemented:
			unavailable = append(unavailable, fmt.Errorf("%s is not a control plane", t.Machine))
		case code == codes.Unavailable || errors.Is(err, ErrUnreachable):
			unavailable = append(unavailable, fmt.Errorf("%s: %w", t.Machine, Plain(err)))
		default:
			return Plain(err)
		}
	}
	return fmt.Errorf("no control plane answers: %w", errors.Join(unavailable...))
}

// Plain is err with the message of the gRPC status in it, without "rpc error: code = …". It still unwraps to err.
func Plain(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok || s.Message() == "" {
		return err
	}
	return &plainError{s.Message(), err}
}

type plainError struct {
	text string
	err  error
}

func (e *plainError) Error() string { return e.text }
func (e *plainError) Unwrap() error { return e.err }
