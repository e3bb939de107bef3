// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"
)

// The methods of etcd's services that are used here.
const (
	methodList       = "/etcdserverpb.Cluster/MemberList"
	methodAdd        = "/etcdserverpb.Cluster/MemberAdd"
	methodPromote    = "/etcdserverpb.Cluster/MemberPromote"
	methodRemove     = "/etcdserverpb.Cluster/MemberRemove"
	methodStatus     = "/etcdserverpb.Maintenance/Status"
	methodMoveLeader = "/etcdserverpb.Maintenance/MoveLeader"
)

// conn is a connection to one etcd server.
type conn struct{ *grpc.ClientConn }

// dial prepares a connection to a client URL, "https://10.89.0.10:2379"; it is made with the first call.
func dial(clientURL string, config *tls.Config) (conn, error) {
	u, err := url.Parse(clientURL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return conn{}, fmt.Errorf("%q is no https URL of an etcd server", clientURL)
	}
	c, err := grpc.NewClient("passthrough:///"+u.Host, grpc.WithTransportCredentials(credentials.NewTLS(config.Clone())),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}))
	return conn{c}, err
}

// ask is one call. It waits for a server that is not there yet, as long as ctx lasts, and tells then why it was not.
func (c conn) ask(ctx context.Context, method string, question, answer proto.Message) error {
	return c.Invoke(ctx, method, question, answer, grpc.WaitForReady(true))
}

// askOne asks servers one after the other until one answers. What etcd says, a no too, is an answer.
func askOne(ctx context.Context, servers []conn, method string, question, answer proto.Message) error {
	err := errors.New("there is no server to ask")
	for i, c := range servers {
		limited, cancel := share(ctx, len(servers)-i)
		err = c.ask(limited, method, question, answer)
		late := limited.Err() != nil
		cancel()
		if !late || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// share is an equal part of the time that is left.
func share(ctx context.Context, parts int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok || parts < 2 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(end)/time.Duration(parts))
}
