// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/record"
)

// TokenSpec is what a token is to be good for.
type TokenSpec struct {
	Pool string        // decides the roles; may be empty where Node has a record
	Node string        // optional: the only name that it is good for
	Key  pin.Pin       // optional: pin of the only machine that may use it
	TTL  time.Duration // 0: admission.MaxTTL, which is also the most
}

// lateness is how long an expired token is kept, so that the audit can say "expired" and not "unknown".
const lateness = admission.MaxTTL

// held is a token with its version.
type held struct {
	admission.Token
	version string
}

func (h *held) value() *admission.Token {
	if h == nil {
		return nil
	}
	return &h.Token
}

// CreateToken makes a token. The text is nowhere kept: it can be shown this once.
func (r *Registry) CreateToken(ctx context.Context, spec TokenSpec) (t admission.Token, text string, err error) {
	if spec, err = r.checkSpec(ctx, spec); err != nil {
		return t, "", fmt.Errorf("create token: %w", err)
	}
	var random [admission.TokenRandom]byte
	if _, err := rand.Read(random[:]); err != nil {
		return t, "", fmt.Errorf("create token: %w", err)
	}
	id, text := admission.TokenText(random)
	_, hash, err := admission.ReadToken(text)
	if err != nil {
		return t, "", fmt.Errorf("create token: %w", err)
	}
	t = admission.Token{ID: id, Hash: hash, Pool: spec.Pool, Node: spec.Node, Key: spec.Key, Expires: r.now().Add(spec.TTL).UTC().Truncate(time.Second)}
	if _, err := r.save(ctx, kindToken, id, "", t); err != nil {
		return admission.Token{}, "", fmt.Errorf("create token: %w", err)
	}
	return t, text, nil
}

func (r *Registry) checkSpec(ctx context.Context, spec TokenSpec) (TokenSpec, error) {
	rules, err := r.rules(ctx)
	if err != nil {
		return spec, err
	}
	b, err := r.book(ctx)
	if err != nil {
		return spec, err
	}
	node, exists := b.records.Node(spec.Node)
	if exists && spec.Pool == "" {
		spec.Pool = node.Pool
	}
	if spec.Pool == "" {
		spec.Pool = onlyWorkers(rules.Pools)
	}
	if spec.TTL == 0 {
		spec.TTL = admission.MaxTTL
	}
	owner, known := b.records.ByKey(spec.Key)
	switch {
	case spec.TTL < time.Second || spec.TTL > admission.MaxTTL:
		return spec, fmt.Errorf("it would live for %s: the least is a second, the most %s", spec.TTL, admission.MaxTTL)
	case spec.Pool == "" && !hasWorkers(rules.Pools):
		return spec, fmt.Errorf("it names no pool, and the spec has none of workers, only %s: name that to let a control plane in (--pool), or add a pool of workers to the spec (spec.pools: name and roles: [worker])",
			strings.Join(slices.Sorted(maps.Keys(rules.Pools)), ", "))
	case spec.Pool == "":
		return spec, fmt.Errorf("it names no pool, and the spec has not just one of workers; it has %s", strings.Join(slices.Sorted(maps.Keys(rules.Pools)), ", "))
	case !has(rules.Pools, spec.Pool):
		return spec, fmt.Errorf("the spec has no pool %.80q", spec.Pool)
	case spec.Node != "" && !admission.ValidName(spec.Node):
		return spec, fmt.Errorf("%.80q cannot be the name of a node", spec.Node)
	case exists && node.Pool != spec.Pool:
		return spec, fmt.Errorf("node %s is in pool %s, not in %s", node.Name, node.Pool, spec.Pool)
	case exists && node.Removing:
		return spec, fmt.Errorf("node %s is being removed", node.Name)
	case spec.Key != "" && !spec.Key.Valid():
		return spec, fmt.Errorf("%.80q is not the pin of a key", spec.Key)
	case known:
		return spec, fmt.Errorf("the machine with this key is node %s and needs no token", owner.Name)
	}
	return spec, nil
}

// onlyWorkers is the pool that is meant when none is named: that of workers, if there is only one.
func onlyWorkers(pools map[string]admission.Pool) (name string) {
	for n, p := range pools {
		switch {
		case p.ControlPlane:
		case name != "":
			return ""
		default:
			name = n
		}
	}
	return name
}

func hasWorkers(pools map[string]admission.Pool) bool {
	for _, p := range pools {
		if !p.ControlPlane {
			return true
		}
	}
	return false
}

func has(pools map[string]admission.Pool, name string) bool {
	_, ok := pools[name]
	return ok
}

// Tokens lists those that are good for something still, and sweeps what has long expired.
func (r *Registry) Tokens(ctx context.Context) ([]admission.Token, error) {
	items, err := r.store.List(ctx, kindToken)
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	now := r.now()
	var out []admission.Token
	for _, item := range items {
		var t admission.Token
		if err := strict(item.Data, &t); err != nil {
			return nil, fmt.Errorf("list tokens: token %s: %w", item.Name, err)
		}
		switch {
		case now.Before(t.Expires):
			out = append(out, t)
		case now.After(t.Expires.Add(lateness)):
			_ = r.store.Delete(ctx, kindToken, item.Name, item.Version) // who looks next tries again
		}
	}
	return out, nil
}

// RevokeToken ends a token: who has not been let in by it yet is not let in any more.
func (r *Registry) RevokeToken(ctx context.Context, id string) error {
	if err := r.store.Delete(ctx, kindToken, id, ""); err != nil {
		return fmt.Errorf("revoke token: %w", err)
	}
	return nil
}

// Token finds a token by its id; false when there surely is none. It may have expired.
func (r *Registry) Token(ctx context.Context, id string) (admission.Token, bool, error) {
	t, err := r.token(ctx, id)
	if t == nil {
		return admission.Token{}, false, err
	}
	return t.Token, true, err
}

// token is nil when there surely is none.
func (r *Registry) token(ctx context.Context, id string) (*held, error) {
	if err := record.CheckName(kindToken, id); err != nil {
		return nil, nil //nolint:nilerr // what cannot be the id of a token is the id of none
	}
	var t held
	var err error
	if t.version, err = r.load(ctx, kindToken, id, &t.Token); errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &t, nil
}

// use marks a token as used by a machine: exactly one machine ever gets it. That the mark is there and the record is not, after a
// crash, is mended by the same machine, which comes again.
func (r *Registry) use(ctx context.Context, t held, key pin.Pin) error {
	t.UsedBy = key
	data, err := json.Marshal(t.Token)
	if err != nil {
		return fmt.Errorf("use token %s: %w", t.ID, err)
	}
	if _, err := r.store.Put(ctx, Item{Kind: kindToken, Name: t.ID, Version: t.version, Data: data}); err != nil {
		return fmt.Errorf("use token %s: %w", t.ID, err)
	}
	return nil
}
