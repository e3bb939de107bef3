// SPDX-License-Identifier: Apache-2.0

package initclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	"github.com/slipway-project/slipway/internal/core/roster"
)

const secretHeader = "slipway-init-secret-bin"

// Dial names a machine; it connects with the first call. The pin is roster.Pin of the machine's key: a machine that shows another
// one is sent nothing. A nil dial is the network.
func Dial(_ context.Context, address, pin, secret string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (*Client, error) {
	secret = strings.TrimSpace(secret)
	if !strings.HasPrefix(pin, "sha256:") || len(pin) != len("sha256:")+64 {
		return nil, fmt.Errorf("machine %s: its pin is sha256: and 64 hex digits, as its console shows it", address)
	}
	if secret == "" {
		return nil, fmt.Errorf("machine %s: no init secret was given", address)
	}
	if dial == nil {
		dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	t := &trust{pin: pin}
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(t.config())),
		grpc.WithPerRPCCredentials(bearer(secret)),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dial(ctx, "tcp", addr) }),
		grpc.WithDisableServiceConfig(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 15 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: firstRest, Multiplier: 2, MaxDelay: longestRest}, MinConnectTimeout: 10 * time.Second}),
	)
	if err != nil {
		return nil, fmt.Errorf("machine %s: %w", address, err)
	}
	return &Client{conn: conn, api: initv1.NewInitClient(conn), address: address, trust: t}, nil
}

// bearer sends the secret along with each call, over TLS only. It has no way to be printed.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{secretHeader: string(b)}, nil
}
func (bearer) RequireTransportSecurity() bool { return true }
func (bearer) String() string                 { return "[redacted]" }
func (bearer) GoString() string               { return "[redacted]" }

// trust is the one key that a machine has to show.
type trust struct {
	pin string

	mu  sync.Mutex // guards err
	err error
}

func (t *trust) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, ServerName: "slipway-init",
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection below: the key is pinned, names and chains mean nothing here
		VerifyConnection: func(state tls.ConnectionState) error {
			err := t.check(state)
			t.mu.Lock()
			defer t.mu.Unlock()
			t.err = err
			return err
		},
	}
}

func (t *trust) check(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("it shows no key")
	}
	if got := roster.Pin(state.PeerCertificates[0].RawSubjectPublicKeyInfo); got != t.pin {
		return &PinError{Want: t.pin, Got: got}
	}
	return nil
}

// broken is what was wrong with the machine that answered last.
func (t *trust) broken() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// PinError says that another machine answers than the one that was meant. Nothing was sent to it.
type PinError struct {
	Want, Got string
}

func (e *PinError) Error() string {
	return fmt.Sprintf("its key is %s, and not %s: this is another machine, or somebody in between; nothing was sent", e.Got, e.Want)
}
