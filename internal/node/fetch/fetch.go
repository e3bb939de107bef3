// SPDX-License-Identifier: Apache-2.0

// Package fetch downloads missing blobs of the component store from the cluster's control planes. It verifies the digest of each
// blob, from any server. It never writes to a blob that is in the store, and connects to the configured servers only.
//
// Read [Config] and [Fetcher.Fetch].
//
//	f := fetch.New(fetch.Config{Store: "/var/lib/slipway/store", Places: storeServers, TLS: pinned, Log: log})
//	err := f.Fetch(ctx, "sha256:9f86d08…") // the blob is complete and on the disk
package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/durable"
)

const (
	parallel = 2                // more downloads would only share the bandwidth and finish later
	maxBlob  = 2 << 30          // bytes
	silence  = 15 * time.Second // without data from a server, before the next one is tried
)

// Config lists the dependencies of a Fetcher.
type Config struct {
	Store  string                                   // directory of the component store
	Places func() ([]netip.AddrPort, error)         // store servers of the control planes; called for each blob
	TLS    func(to netip.Addr) (*tls.Config, error) // trusts only this cluster's control planes
	Log    *slog.Logger
}

// Fetcher downloads blobs. It is safe for concurrent use, except for calls for the same blob at the same time.
type Fetcher struct {
	Config
	limiter chan struct{}
}

// New returns a Fetcher.
func New(c Config) *Fetcher { return &Fetcher{c, make(chan struct{}, parallel)} }

// Fetch returns when the blob is verified and durable in the store. A partial download is kept, and the next call continues it. The
// error contains the failure of each server that was tried.
func (f *Fetcher) Fetch(ctx context.Context, digest string) error {
	sum, ok := strings.CutPrefix(digest, "sha256:")
	if !ok {
		return fmt.Errorf("fetch %s: not a SHA-256 digest", digest)
	}
	servers, err := f.Places()
	if err != nil {
		return fmt.Errorf("fetch %s: %w", digest, err)
	}
	if len(servers) == 0 {
		return fmt.Errorf("fetch %s: no control plane is known", digest)
	}
	select {
	case f.limiter <- struct{}{}:
		defer func() { <-f.limiter }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for _, dir := range []string{f.blobs(), f.parts()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	var errs []error
	for _, i := range rand.Perm(len(servers)) { // spreads the load of many machines
		err := f.fetchFrom(ctx, servers[i], sum)
		if err == nil {
			f.Log.Info("fetched", "digest", digest, "from", servers[i])
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		errs = append(errs, fmt.Errorf("%s: %w", servers[i], err))
	}
	return fmt.Errorf("fetch %s: %w", digest, errors.Join(errs...))
}

func (f *Fetcher) blobs() string { return filepath.Join(f.Store, "blobs", "sha256") }
func (f *Fetcher) parts() string { return filepath.Join(f.Store, "tmp") }

// fetchFrom downloads the rest of a blob from one server, verifies the blob and moves it into the store.
func (f *Fetcher) fetchFrom(ctx context.Context, server netip.AddrPort, sum string) (err error) {
	path := filepath.Join(f.parts(), sum+".part")
	part, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, part.Close()) }()
	if err := f.download(ctx, server, sum, part); err != nil {
		return err
	}
	if _, err := part.Seek(0, io.SeekStart); err != nil {
		return err
	}
	got, _, err := durable.Digest(ctx, part)
	if err != nil {
		return err
	}
	if got != "sha256:"+sum {
		return errors.Join(fmt.Errorf("the downloaded blob has the digest %s", got), os.Remove(path))
	}
	if err := errors.Join(part.Chmod(0o755), part.Sync()); err != nil {
		return err
	}
	if err := os.Rename(path, filepath.Join(f.blobs(), sum)); err != nil {
		return err
	}
	return durable.SyncDir(f.blobs())
}

// download appends the missing bytes to the part.
func (f *Fetcher) download(ctx context.Context, server netip.AddrPort, sum string, part *os.File) error {
	have, err := part.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(silence, func() { cancel(fmt.Errorf("no data for %s", silence)) })
	defer timer.Stop()
	reply, err := f.request(ctx, server, sum, have)
	if err != nil {
		return cause(ctx, err)
	}
	defer func() { _ = reply.Body.Close() }()
	switch reply.StatusCode {
	case http.StatusOK: // the whole blob
		if have, err = 0, part.Truncate(0); err == nil {
			_, err = part.Seek(0, io.SeekStart)
		}
		if err != nil {
			return err
		}
	case http.StatusPartialContent:
		if got := reply.Header.Get("Content-Range"); !strings.HasPrefix(got, fmt.Sprintf("bytes %d-", have)) {
			return fmt.Errorf("got content range %q, want one from byte %d", got, have)
		}
	case http.StatusRequestedRangeNotSatisfiable: // the part is complete, according to the server: the digest decides
		return nil
	default:
		return fmt.Errorf("unexpected status %s", reply.Status)
	}
	if reply.ContentLength < 0 || have+reply.ContentLength > maxBlob {
		return fmt.Errorf("content length %d is unknown or too large (at most %d bytes)", reply.ContentLength, maxBlob-have)
	}
	_, err = io.Copy(part, &timedReader{reply.Body, timer})
	return cause(ctx, err)
}

// request asks a server for a blob, from byte have on.
func (f *Fetcher) request(ctx context.Context, server netip.AddrPort, sum string, have int64) (*http.Response, error) {
	trust, err := f.TLS(server.Addr())
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: trust, ForceAttemptHTTP2: true, DisableCompression: true} // no proxy: the servers are in the cluster
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+server.String()+"/sha256/"+sum, nil)
	if err != nil {
		return nil, err
	}
	if have > 0 {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", have))
	}
	reply, err := transport.RoundTrip(r)
	if err != nil {
		transport.CloseIdleConnections()
		return nil, err
	}
	reply.Body = body{reply.Body, transport}
	return reply, nil
}

// body closes the connection when it is closed.
type body struct {
	io.ReadCloser
	transport *http.Transport
}

func (b body) Close() error {
	err := b.ReadCloser.Close()
	b.transport.CloseIdleConnections()
	return err
}

// timedReader restarts the timer whenever data arrives.
type timedReader struct {
	io.Reader
	timer *time.Timer
}

func (t *timedReader) Read(p []byte) (int, error) {
	n, err := t.Reader.Read(p)
	if n > 0 {
		t.timer.Reset(silence)
	}
	return n, err
}

// cause replaces an error by the reason why ctx has ended, instead of "context canceled".
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
