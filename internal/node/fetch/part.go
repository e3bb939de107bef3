// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/slipway-project/slipway/internal/durable"
)

// silence is how long a server may say nothing before the next one is asked.
const silence = 15 * time.Second

// from asks one place for what is missing, and puts the whole into the store.
func (f *Fetcher) from(ctx context.Context, place netip.AddrPort, sum string) (err error) {
	path := filepath.Join(f.parts(), sum+".part")
	part, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, part.Close()) }()
	if err := f.download(ctx, place, sum, part); err != nil {
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
		return errors.Join(fmt.Errorf("what it sent has the digest %s", got), os.Remove(path))
	}
	if err := errors.Join(part.Chmod(0o755), part.Sync()); err != nil {
		return err
	}
	if err := os.Rename(path, filepath.Join(f.blobs(), sum)); err != nil {
		return err
	}
	return durable.SyncDir(f.blobs())
}

// download appends to the part what it lacks.
func (f *Fetcher) download(ctx context.Context, place netip.AddrPort, sum string, part *os.File) error {
	have, err := part.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(silence, func() { cancel(fmt.Errorf("it has sent nothing for %s", silence)) })
	defer watch.Stop()
	answer, err := f.ask(ctx, place, sum, have)
	if err != nil {
		return cause(ctx, err)
	}
	defer func() { _ = answer.Body.Close() }()
	switch answer.StatusCode {
	case http.StatusOK: // the whole, from its beginning
		if have, err = 0, part.Truncate(0); err == nil {
			_, err = part.Seek(0, io.SeekStart)
		}
		if err != nil {
			return err
		}
	case http.StatusPartialContent:
		if want := fmt.Sprintf("bytes %d-", have); len(answer.Header.Get("Content-Range")) < len(want) || answer.Header.Get("Content-Range")[:len(want)] != want {
			return fmt.Errorf("it was asked for the bytes from %d on and sends %q", have, answer.Header.Get("Content-Range"))
		}
	case http.StatusRequestedRangeNotSatisfiable: // all of it is here, as far as this server knows: the digest decides
		return nil
	default:
		return fmt.Errorf("it answers %s", answer.Status)
	}
	if answer.ContentLength < 0 || have+answer.ContentLength > mostOfABlob {
		return fmt.Errorf("it would send %d bytes: more than any component has, or no one knows how many", answer.ContentLength)
	}
	_, err = io.Copy(part, &heard{answer.Body, watch})
	return cause(ctx, err)
}

func (f *Fetcher) ask(ctx context.Context, place netip.AddrPort, sum string, have int64) (*http.Response, error) {
	trust, err := f.TLS(place.Addr())
	if err != nil {
		return nil, err
	}
	wire := &http.Transport{TLSClientConfig: trust, ForceAttemptHTTP2: true, DisableCompression: true} // no proxy: these are the cluster's own addresses
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+place.String()+"/sha256/"+sum, nil)
	if err != nil {
		return nil, err
	}
	if have > 0 {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", have))
	}
	answer, err := wire.RoundTrip(r)
	if err != nil {
		wire.CloseIdleConnections()
		return nil, err
	}
	answer.Body = whole{answer.Body, wire}
	return answer, nil
}

// whole is a body whose connection ends with it.
type whole struct {
	io.ReadCloser
	wire *http.Transport
}

func (w whole) Close() error {
	err := w.ReadCloser.Close()
	w.wire.CloseIdleConnections()
	return err
}

// heard puts the watch back whenever something comes.
type heard struct {
	io.Reader
	watch *time.Timer
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if n > 0 {
		h.watch.Reset(silence)
	}
	return n, err
}

// cause says why the context ended instead of "context canceled".
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
