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

// Admit decides about a machine and writes what was decided, and only then returns it: first the token's use, then the record.
// Whoever comes again after a crash or a lost answer gets the same record. The error is a *admission.Refusal, a *admission.Wait,
// or says that the records could not be read or written, which is no verdict.
func (r *Registry) Admit(ctx context.Context, req admission.Request) (admission.Node, error) {
	j, err := r.judge(ctx, req)
	if err != nil {
		return admission.Node{}, err
	}
	if !j.writes() { // most of what strangers ask ends here: they do not hold up those who wait for their turn to write
		return j.answer()
	}
	err = r.alone(ctx, "admit machine", func() error {
		fresh := r.newest(j.book)
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

// judgement is a verdict and what it was made of.
type judgement struct {
	book    book
	token   *held
	key     pin.Pin
	verdict admission.Verdict
}

// judge reads and decides; it writes nothing.
func (r *Registry) judge(ctx context.Context, req admission.Request) (judgement, error) {
	rules, err := r.rules(ctx)
	if err != nil {
		return judgement{}, fmt.Errorf("admit machine: %w", err)
	}
	b, err := r.book(ctx)
	if errors.Is(err, errUnregistered) {
		return judgement{}, &wait.Error{For: wait.For{What: "the records of the cluster's nodes", Who: "the control plane's agent, which registers them when the API answers", Since: r.now()}}
	}
	if err != nil {
		return judgement{}, fmt.Errorf("admit machine: %w", err)
	}
	var t *held
	if _, known := b.records.ByKey(req.Key); req.Evidence.TokenID != "" && !known {
		if t, err = r.token(ctx, req.Evidence.TokenID); err != nil {
			return judgement{}, fmt.Errorf("admit machine: %w", err)
		}
	}
	return judgement{b, t, req.Key, admission.Decide(req, b.records, t.value(), rules, r.now())}, nil
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
