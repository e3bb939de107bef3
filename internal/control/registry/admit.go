// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/wait"
)

// Admit decides about a machine and returns the decision only after it is written: first the use of the token, then the record. The
// same request gets the same record again, also after a crash or a lost answer. It fails with an *admission.Refusal or a *wait.Error.
// After any other error there is no decision: the records could not be read or written.
func (r *Registry) Admit(ctx context.Context, req admission.Request) (admission.Node, error) {
	j, err := r.judge(ctx, req)
	if err != nil {
		return admission.Node{}, err
	}
	if !j.writes() { // most requests of unknown machines end here, without waiting for writers
		return j.answer()
	}
	err = r.exclusive(ctx, "admit machine", func() error {
		fresh := r.isNewest(j.book)
		return swap(ctx, "admit machine", func() error {
			if !fresh {
				if j, err = r.judge(ctx, req); err != nil {
					return err
				}
			}
			fresh = false
			return r.write(ctx, j)
		})
	})
	if err != nil {
		return admission.Node{}, err
	}
	return j.answer()
}

// judgement is a verdict and the records that it was based on.
type judgement struct {
	book    book
	token   *storedToken
	key     pin.Pin
	verdict admission.Verdict
}

// judge reads the records and decides. It writes nothing.
func (r *Registry) judge(ctx context.Context, req admission.Request) (judgement, error) {
	policy, err := r.readPolicy(ctx)
	if err != nil {
		return judgement{}, fmt.Errorf("admit machine: %w", err)
	}
	b, err := r.book(ctx)
	if errors.Is(err, errUnregistered) {
		return judgement{}, &wait.Error{For: wait.For{What: "the records of the cluster's nodes", Who: "the agent of the control plane, which registers them once the API server answers", Since: r.now()}}
	}
	if err != nil {
		return judgement{}, fmt.Errorf("admit machine: %w", err)
	}
	var t *storedToken
	if _, known := b.records.ByKey(req.Key); req.Evidence.TokenID != "" && !known {
		if t, err = r.token(ctx, req.Evidence.TokenID); err != nil {
			return judgement{}, fmt.Errorf("admit machine: %w", err)
		}
	}
	return judgement{b, t, req.Key, admission.Decide(req, b.records, t.value(), policy, r.now())}, nil
}

func (j judgement) writes() bool {
	return j.verdict.Node.Name != "" && (j.usesToken() || j.changesNode())
}

func (j judgement) usesToken() bool { return j.verdict.UseToken && j.token.UsedBy != j.key }

func (j judgement) changesNode() bool {
	old, ok := j.book.records.Node(j.verdict.Node.Name)
	return !ok || old != j.verdict.Node
}

func (r *Registry) write(ctx context.Context, j judgement) error {
	if !j.writes() {
		return nil
	}
	records, err := j.book.records.Replace(j.verdict.Node, r.now())
	if err != nil {
		return fmt.Errorf("admit machine: %w", err)
	}
	if j.usesToken() {
		if err := r.use(ctx, *j.token, j.key); err != nil {
			return fmt.Errorf("admit machine: %w", err)
		}
	}
	if !j.changesNode() {
		return nil
	}
	if err := r.saveBook(ctx, j.book, records); err != nil {
		return fmt.Errorf("admit machine: %w", err)
	}
	return nil
}

func (j judgement) answer() (admission.Node, error) {
	switch {
	case j.verdict.Refusal != nil:
		return admission.Node{}, j.verdict.Refusal
	case j.verdict.Wait != nil:
		return admission.Node{}, &wait.Error{For: *j.verdict.Wait}
	}
	return j.verdict.Node, nil
}
