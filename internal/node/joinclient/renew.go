// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"context"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
)

// renewal is one question for certificates, until it is answered or nobody wants the answer any more.
type renewal struct {
	requests map[string][]byte
	answer   chan renewed // has room for the one answer
	gone     chan struct{}
}

type renewed struct {
	certificates map[string][]byte
	err          error
}

// Renew gets certificates for new keys: name of the Want → PKCS#10, DER; the answer is PEM. It waits for a stream, survives the
// end of one, and ends with an error when it is refused or the context ends.
func (s *Sync) Renew(ctx context.Context, requests map[string][]byte) (map[string][]byte, error) {
	r := &renewal{requests: requests, answer: make(chan renewed, 1), gone: make(chan struct{})}
	defer close(r.gone)
	select {
	case s.renewals <- r:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case a := <-r.answer:
		return a.certificates, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (r *renewal) message() *joinv1.SyncRequest {
	return &joinv1.SyncRequest{Message: &joinv1.SyncRequest_Keys{Keys: &joinv1.Keys{Requests: r.requests}}}
}

func (r *renewal) abandoned() bool {
	select {
	case <-r.gone:
		return true
	default:
		return false
	}
}

// renewed hands an answer to who asked.
func (k *keeper) renewed(certificates map[string][]byte) error {
	r := k.asked
	if r == nil {
		return odd("it sends certificates that nobody asked for")
	}
	k.asked = nil
	if err := checkKeys(r.requests, certificates); err != nil {
		r.answer <- renewed{err: err}
		return err
	}
	r.answer <- renewed{certificates: certificates}
	return nil
}

// giveBack is the end of a stream for those who wait: a no is theirs to know, anything else is asked again on the next stream.
func (k *keeper) giveBack(denied bool, err error) {
	switch r := k.asked; {
	case r == nil:
	case r.abandoned():
		k.asked = nil
	case denied:
		r.answer <- renewed{err: err}
		k.asked = nil
	}
}
