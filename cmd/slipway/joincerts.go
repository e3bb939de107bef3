// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"

	"github.com/slipway-project/slipway/internal/control/admin"
	"github.com/slipway-project/slipway/internal/control/rosters"
	"github.com/slipway-project/slipway/internal/control/storeserver"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/roster"
)

// joinCertificate is read for each connection: it is renewed.
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

// signWith signs with the key in a file, which is not kept in memory.
func signWith(path string) func(digest []byte) ([]byte, error) {
	return func(digest []byte) ([]byte, error) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		block, _ := pem.Decode(text)
		if block == nil {
			return nil, fmt.Errorf("%s holds no key", path)
		}
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		key, ok := parsed.(*ecdsa.PrivateKey)
		if err != nil || !ok {
			return nil, fmt.Errorf("%s holds no ECDSA key", path)
		}
		return ecdsa.SignASN1(rand.Reader, key, digest)
	}
}

// invitation is what a machine needs beside its token.
func invitation(ctx context.Context, k *rosters.Keeper, joinCA *x509.Certificate) (admin.Invitation, error) {
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
	for _, at := range r.Join {
		out.Endpoints = append(out.Endpoints, at.String())
	}
	for _, at := range storesOf(r, nil) {
		out.Stores = append(out.Stores, at.String())
	}
	out.Program, err = storeserver.DigestOf(ctx, config.SlipwayBinary)
	return out, err
}
