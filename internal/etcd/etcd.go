// SPDX-License-Identifier: Apache-2.0

// Package etcd asks and changes the members of etcd, by the few calls of its gRPC API that this takes (etcdpb says why not by etcd's
// own client). It decides nothing: which change is safe says core/membership. It never reads or writes keys, and it writes no log.
//
// Read [Client]. Every call has a deadline of its own, within that of its context.
//
//	c, err := etcd.Connect(etcd.Config{Endpoints: []string{"https://127.0.0.1:2379"}, CA: "…/etcd/ca.crt", Cert: "…", Key: "…"})
//	all, err := c.Members(ctx) // [{ID: 0x8e9e…, Name: "dev-main-0", PeerURL: "https://10.89.0.10:2380", Started: true}]
package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"
)

// Deadlines of the calls.
const (
	listTimeout   = 3 * time.Second
	healthTimeout = time.Second
	changeTimeout = 5 * time.Second // less than half of a slot's life: see control/members
)

// Config says where etcd is. All files are PEM; certificate and key are read again for each connection, for they are renewed.
type Config struct {
	Endpoints     []string // of this machine's own member: a voter's answer counts
	CA, Cert, Key string
}

// Client is safe for concurrent use.
type Client struct {
	cfg Config
	tls *tls.Config
	own []conn
}

// Connect prepares; it does not wait for etcd, which may start later.
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
	c := &Client{cfg: cfg, tls: &tls.Config{
		MinVersion: tls.VersionTLS12,
		RootCAs:    roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cfg.Cert, cfg.Key)
			return &pair, err
		},
	}}
	if c.own, err = c.to(cfg.Endpoints...); err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return c, nil
}

// Close ends the connection.
func (c *Client) Close() error {
	if err := closeAll(c.own); err != nil {
		return fmt.Errorf("close connection to etcd: %w", err)
	}
	return nil
}

func (c *Client) to(urls ...string) (servers []conn, err error) {
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
