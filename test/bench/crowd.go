// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/node/joinclient"
)

// runCrowd joins for the machines that it reads of: with tokens, then without, for by then they are known, and then one after the
// other. Nothing of what they are given is kept.
func runCrowd(ctx context.Context, in io.Reader, out io.Writer) error {
	var c crowd
	if err := json.NewDecoder(in).Decode(&c); err != nil {
		return fmt.Errorf("read the crowd: %w", err)
	}
	at, err := netip.ParseAddrPort(c.Endpoint)
	if err != nil {
		return err
	}
	l := Live{Machines: len(c.Machines)}
	if l.NewP50, l.NewP99, err = c.atOnce(ctx, at); err != nil {
		return fmt.Errorf("with tokens: %w", err)
	}
	for i := range c.Machines {
		c.Machines[i].Token = ""
	}
	if l.AllP50, l.AllP99, err = c.atOnce(ctx, at); err != nil {
		return fmt.Errorf("as known machines: %w", err)
	}
	var single []float64
	for _, m := range c.Machines {
		begun := time.Now()
		if err := m.join(ctx, at, c.Pin); err != nil {
			return fmt.Errorf("as a known machine: %w", err)
		}
		single = append(single, float64(time.Since(begun).Microseconds())/1e3)
	}
	l.OneP50, l.OneP99 = percentiles(single)
	return json.NewEncoder(out).Encode(l)
}

// atOnce lets all join at the same moment; the seconds of each count from then.
func (c crowd) atOnce(ctx context.Context, at netip.AddrPort) (p50, p99 float64, err error) {
	took := make([]float64, len(c.Machines))
	begun := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for i, m := range c.Machines {
		group.Go(func() error {
			err := m.join(ctx, at, c.Pin)
			took[i] = time.Since(begun).Seconds()
			return err
		})
	}
	err = group.Wait()
	p50, p99 = percentiles(took)
	return p50, p99, err
}

func percentiles(values []float64) (p50, p99 float64) {
	slices.Sort(values)
	return values[len(values)/2], values[len(values)*99/100]
}

// join is what an agent does, up to the certificates.
func (m crowdMachine) join(ctx context.Context, at netip.AddrPort, pin string) error {
	parsed, err := x509.ParsePKCS8PrivateKey(m.Key)
	if err != nil {
		return err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return errors.New("the key is no ECDSA key")
	}
	last := joinclient.Status{}
	_, err = joinclient.Join(ctx, joinclient.Config{
		Endpoints: func() []netip.AddrPort { return []netip.AddrPort{at} }, Pin: pin, Key: key, Keys: freshKeys{}, Node: m.Name,
		Facts: func() joinclient.Facts { return joinclient.Facts{Address: m.Address} }, Slipway: "bench",
		Token: func() string { return m.Token }, Log: slog.New(slog.DiscardHandler), Report: func(s joinclient.Status) { last = s },
	})
	if err != nil {
		return fmt.Errorf("%s: %w, waiting for %s (%s)", m.Name, err, last.For, last.Detail)
	}
	return nil
}

// freshKeys makes keys that nobody keeps.
type freshKeys struct{}

// Request is joinclient.Keys.
func (freshKeys) Request(pki.Want) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
}
