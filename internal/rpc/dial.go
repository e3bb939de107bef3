// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

const maxAnswer = 16 << 20 // bytes: a plan with everything that is given with it

// Dial prepares a connection to target, "host:port". Nothing is sent before the first call; a call without grpc.WaitForReady
// fails with the reason when the server cannot be reached or is not trusted (see [IsUntrusted]).
func Dial(target string, o ClientOptions) (*grpc.ClientConn, error) {
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", target, err)
	}
	if o.ServerName == "" {
		o.ServerName = host
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("dial %s: %w", target, err)
	}
	if o.Message == 0 {
		o.Message = maxAnswer
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(ClientTLS(o))),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.Message)),
		// gRPC's own first pause is a second, which a server that is just starting does not deserve.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 10 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithUserAgent("slipway"),
	}
	if o.Dialer != nil {
		options = append(options, grpc.WithContextDialer(o.Dialer))
	}
	conn, err := grpc.NewClient("passthrough:///"+target, options...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", target, err)
	}
	return conn, nil
}
