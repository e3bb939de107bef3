// SPDX-License-Identifier: Apache-2.0

// Package fetch brings parts of the component store from the cluster's control planes to a machine that lacks them. It believes
// digests only: what has another one than was asked for is thrown away, whoever sent it. It never overwrites a blob in place, and
// never asks anybody but the places that it is given.
//
// Read [Config] and [Fetcher.Fetch].
//
//	f := fetch.New(fetch.Config{Store: "/var/lib/slipway/store", Places: joinServices, TLS: pinned, Log: log})
//	err := f.Fetch(ctx, "sha256:9f86d08…") // it is in the store now, whole and on the disk
package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

const (
	atOnce      = 2 // more would only share the same line, and the same two files would be late
	mostOfABlob = 2 << 30
)

// Config says where to ask and where to put it.
type Config struct {
	Store  string                                   // folder of the component store
	Places func() ([]netip.AddrPort, error)         // the store servers of the control planes; asked for each blob
	TLS    func(to netip.Addr) (*tls.Config, error) // trusts this cluster's control planes and nobody else
	Log    *slog.Logger
}

// Fetcher fetches. It may be called from many goroutines, for one blob never two at a time.
type Fetcher struct {
	Config
	slots chan struct{}
}

// New makes a fetcher.
func New(c Config) *Fetcher { return &Fetcher{c, make(chan struct{}, atOnce)} }

// Fetch returns when the blob is in the store, verified and durable. What came before it broke off is kept, and the next call goes on
// from there. The error names every place that was asked.
func (f *Fetcher) Fetch(ctx context.Context, digest string) error {
	sum, ok := strings.CutPrefix(digest, "sha256:")
	if !ok {
		return fmt.Errorf("fetch %s: not a SHA-256 digest", digest)
	}
	places, err := f.Places()
	if err != nil {
		return fmt.Errorf("fetch %s: %w", digest, err)
	}
	if len(places) == 0 {
		return fmt.Errorf("fetch %s: there is no control plane to ask", digest)
	}
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for _, dir := range []string{f.blobs(), f.parts()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	var errs []error
	for _, i := range rand.Perm(len(places)) { // a hundred machines must not all begin with the same one
		err := f.from(ctx, places[i], sum)
		if err == nil {
			f.Log.Info("fetched", "digest", digest, "from", places[i])
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		errs = append(errs, fmt.Errorf("%s: %w", places[i], err))
	}
	return fmt.Errorf("fetch %s: %w", digest, errors.Join(errs...))
}

func (f *Fetcher) blobs() string { return filepath.Join(f.Store, "blobs", "sha256") }
func (f *Fetcher) parts() string { return filepath.Join(f.Store, "tmp") }
