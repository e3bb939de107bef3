// SPDX-License-Identifier: Apache-2.0

package initclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/rpc"
)

// secretHeader carries the secret with every call.
const secretHeader = "slipway-init-secret-bin"

// Dial names a machine; it connects with the first call. The pin is pin of the machine's key: a machine that shows another
// one is sent nothing. A nil dial is the network.
func Dial(_ context.Context, address string, key pin.Pin, secret string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (*Client, error) {
	secret = strings.TrimSpace(secret)
	if !key.Valid() {
		return nil, fmt.Errorf("machine %s: its pin has to be sha256: and 64 hex digits, as the machine's console shows it", address)
	}
	if secret == "" {
		return nil, fmt.Errorf("machine %s: its init secret is missing", address)
	}
	o := rpc.ClientOptions{Pin: key, ServerName: "slipway-init"}
	if dial != nil {
		o.Dialer = func(ctx context.Context, addr string) (net.Conn, error) { return dial(ctx, "tcp", addr) }
	}
	conn, err := rpc.Dial(address, o)
	if err != nil {
		return nil, fmt.Errorf("machine: %w", err)
	}
	return &Client{conn: conn, api: initv1.NewInitClient(conn), address: address, secret: bearer(secret)}, nil
}

// bearer sends the secret along with each call. gRPC asks for it when the handshake is over, and so the pin is checked. It does not
// print.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if b == "" {
		return nil, errors.New("the init secret is missing")
	}
	return map[string]string{secretHeader: string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }
func (bearer) String() string                 { return "[redacted]" }
func (bearer) GoString() string               { return "[redacted]" }
