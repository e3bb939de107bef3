// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"context"
	"time"

	"google.golang.org/grpc"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/rpc"
)

// flooder sends bad requests and does not care for answers.
type flooder struct {
	*machine
	kept *grpc.ClientConn
}

func (f *flooder) close() {
	if f.kept != nil {
		_ = f.kept.Close()
	}
}

func (f *flooder) conn() *grpc.ClientConn {
	certificate, err := rpc.SelfSigned(f.key, "flood", time.Now())
	if err != nil {
		return nil
	}
	conn, err := rpc.Dial(f.w.endpoint.String(), rpc.ClientOptions{CAPin: f.w.pin, Certificate: certificate, Dialer: f.dialTCP})
	if err != nil {
		return nil
	}
	return conn
}

// bad is one bad request: a connection that says nothing of use, a hello of another cluster, or a proof by the wrong key.
func (f *flooder) bad(ctx context.Context, n int) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if n%4 == 0 {
		if c, err := f.dialTCP(ctx, f.w.endpoint.String()); err == nil {
			_, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
			c.Close()
		}
		return
	}
	conn := f.kept
	if n%2 == 0 || conn == nil {
		conn = f.conn()
		if conn == nil {
			return
		}
		if n%2 == 0 {
			defer func() { _ = conn.Close() }()
		} else {
			f.kept = conn
		}
	}
	stream, err := joinv1.NewJoinClient(conn).Join(ctx)
	if err != nil {
		return
	}
	hello := &joinv1.Hello{
		Protocol: 1, Cluster: f.w.id, Verifier: "token", SealKey: make([]byte, 32), Facts: coremachine.Facts{Address: f.address}.Encode(),
	}
	if n%3 == 0 {
		hello.Cluster = "other"
	}
	_ = stream.Send(&joinv1.JoinRequest{Message: &joinv1.JoinRequest_Hello{Hello: hello}})
	if _, err := stream.Recv(); err != nil {
		return
	}
	_ = stream.Send(&joinv1.JoinRequest{Message: &joinv1.JoinRequest_Proof{Proof: &joinv1.Proof{Signature: make([]byte, 71)}}})
	_, _ = stream.Recv()
}
