// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/slipway-project/slipway/internal/control/admin"
	"github.com/slipway-project/slipway/internal/control/rosters"
	"github.com/slipway-project/slipway/internal/control/storeserver"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/sleep"
)

// joinCertificate is read for each connection, since it is renewed from time to time.
func joinCertificate() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(config.JoinServing+".crt", config.JoinServing+".key")
	if err != nil {
		return nil, err
	}
	joinCA, err := readCertificate(config.JoinCA + ".crt")
	if err != nil {
		return nil, err
	}
	pair.Certificate = append(pair.Certificate, joinCA.Raw)
	return &pair, nil
}

func readCertificate(path string) (*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return pki.Certificate(path, text)
}

// signWith signs with the key in a file. The key is not kept in memory.
func signWith(path string) func(digest []byte) ([]byte, error) {
	return func(digest []byte) ([]byte, error) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		block, _ := pem.Decode(text)
		if block == nil {
			return nil, fmt.Errorf("%s has no key", path)
		}
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		key, ok := parsed.(*ecdsa.PrivateKey)
		if err != nil || !ok {
			return nil, fmt.Errorf("%s has no ECDSA key", path)
		}
		return ecdsa.SignASN1(rand.Reader, key, digest)
	}
}

// invite returns what a machine needs to join in addition to a token.
func invite(ctx context.Context, k *rosters.Publisher, joinCA *x509.Certificate) (admin.Invitation, error) {
	signed, _, _ := k.Current()
	var wire roster.Signed
	if err := json.Unmarshal(signed, &wire); err != nil {
		return admin.Invitation{}, fmt.Errorf("the cluster has no roster yet: %w", err)
	}
	r, err := wire.Open(joinCA)
	if err != nil {
		return admin.Invitation{}, err
	}
	ca := pin.OfCertificate(joinCA)
	out := admin.Invitation{Pin: ca, Cluster: ca.ClusterID()}
	for _, join := range r.Join {
		out.Endpoints = append(out.Endpoints, join.String())
		out.Stores = append(out.Stores, netip.AddrPortFrom(join.Addr(), config.StorePort).String())
	}
	out.Program, err = storeserver.DigestOf(ctx, config.SlipwayBinary)
	return out, err
}

// serveStore offers this control plane's components to other machines until ctx ends. A failure, such as a port that is in use,
// must not keep machines from joining.
func (s *Service) serveStore(ctx context.Context) {
	server := storeserver.New(storeserver.Config{
		Blobs: filepath.Join(s.StoreDir, "blobs", "sha256"), Program: config.SlipwayBinary, Certificate: joinCertificate,
	})
	for last := ""; ctx.Err() == nil; _ = sleep.For(ctx, storeRetry) {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", config.StorePort))
		if err == nil {
			err = server.Serve(ctx, l)
		}
		if err != nil && err.Error() != last {
			last = err.Error()
			s.Log.Warn("component store not served", "error", err, "retry in", storeRetry)
		}
	}
}

const storeRetry = 5 * time.Second
