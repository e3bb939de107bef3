// SPDX-License-Identifier: Apache-2.0

// Package etcd lists and changes the members of an etcd cluster. It uses only the few calls of etcd's gRPC API that are needed for
// that; package etcdpb says why it does not use etcd's own client. It does not decide which change is safe (package
// core/membership does), it does not read or write keys, and it logs nothing.
//
// Read [Client] first. Every call has its own timeout, in addition to the deadline of its context.
//
//	c, err := etcd.Connect(etcd.Config{Endpoints: []string{"https://127.0.0.1:2379"}, CA: "…/etcd/ca.crt", Cert: "…", Key: "…"})
//	all, err := c.Members(ctx) // [{ID: 0x8e9e…, Name: "dev-main-0", PeerURL: "https://10.89.0.10:2380", Started: true}]
package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"
)

// Timeouts of the calls.
const (
	listTimeout   = 3 * time.Second
	healthTimeout = time.Second
	changeTimeout = 5 * time.Second // less than half of the duration of the lease that guards changes: see control/members
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

// Config says how to connect to etcd. All files are PEM. Certificate and key are read again for each connection, so that a
// renewed certificate is used.
type Config struct {
	Endpoints     []string // client URLs of this machine's own member
	CA, Cert, Key string
}

// Client is safe for concurrent use.
type Client struct {
	tls *tls.Config
	own []conn // to Config.Endpoints
}

// Connect returns a client. It does not wait for etcd, which may start later.
func Connect(cfg Config) (*Client, error) {
	ca, err := os.ReadFile(cfg.CA)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("connect to etcd: no certificate in %s", cfg.CA)
	}
	if _, err := tls.LoadX509KeyPair(cfg.Cert, cfg.Key); err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	c := &Client{tls: &tls.Config{
		MinVersion: tls.VersionTLS12,
		RootCAs:    roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cfg.Cert, cfg.Key)
			return &pair, err
		},
	}}
	if c.own, err = c.dialAll(cfg.Endpoints); err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return c, nil
}

// Close closes the connection.
func (c *Client) Close() error {
	if err := closeAll(c.own); err != nil {
		return fmt.Errorf("close connection to etcd: %w", err)
	}
	return nil
}

// dialAll prepares a connection to each client URL. After an error it leaves none open.
func (c *Client) dialAll(urls []string) (servers []conn, err error) {
	for _, u := range urls {
		server, err := dial(u, c.tls)
		if err != nil {
			return nil, errors.Join(err, closeAll(servers))
		}
		servers = append(servers, server)
	}
	return servers, nil
}

func closeAll(servers []conn) error {
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// conn is a connection to one etcd server.
type conn struct{ *grpc.ClientConn }

// dial prepares a connection to a client URL such as "https://10.89.0.10:2379". It connects at the first call.
func dial(clientURL string, config *tls.Config) (conn, error) {
	u, err := url.Parse(clientURL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return conn{}, fmt.Errorf("%q is not the https URL of an etcd server", clientURL)
	}
	c, err := grpc.NewClient("passthrough:///"+u.Host, grpc.WithTransportCredentials(credentials.NewTLS(config.Clone())),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}))
	return conn{c}, err
}

// call makes one call. It waits for a server that cannot be reached until ctx ends; the error then says why.
func (c conn) call(ctx context.Context, method string, request, response proto.Message) error {
	return c.Invoke(ctx, method, request, response, grpc.WaitForReady(true))
}

// callAny calls the servers one after another until one responds. An error that etcd returns is a response too. Each server gets
// an equal part of the time that is left.
func callAny(ctx context.Context, servers []conn, method string, request, response proto.Message) error {
	err := errors.New("no etcd server is known")
	for i, c := range servers {
		limited, cancel := context.WithCancel(ctx)
		if end, ok := ctx.Deadline(); ok && i < len(servers)-1 {
			cancel()
			limited, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(len(servers)-i))
		}
		err = c.call(limited, method, request, response)
		timedOut := limited.Err() != nil
		cancel()
		if !timedOut || ctx.Err() != nil {
			return err
		}
	}
	return err
}
