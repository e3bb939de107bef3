// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/record"
	"github.com/slipway-project/slipway/internal/core/strictjson"
)

// TokenSpec says what a new token admits.
type TokenSpec struct {
	Pool string        // may be empty if Node has a record, or if there is only one pool of workers
	Node string        // optional: the only name that the machine may take
	Key  pin.Pin       // optional: pin of the only machine that may use it
	TTL  time.Duration // at most admission.MaxTTL, which is also the default
}

// keepExpired is how long an expired token is kept, so that the audit log says "expired" instead of "unknown".
const keepExpired = admission.MaxTTL

// storedToken is a token and the version of its record.
type storedToken struct {
	admission.Token
	version string
}

func (t *storedToken) value() *admission.Token {
	if t == nil {
		return nil
	}
	return &t.Token
}

// CreateToken creates a token. The text is not stored, so this is the only time that it can be shown.
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
	policy, err := r.readPolicy(ctx)
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
		spec.Pool = onlyWorkers(policy.Pools)
	}
	if spec.TTL == 0 {
		spec.TTL = admission.MaxTTL
	}
	owner, known := b.records.ByKey(spec.Key)
	_, hasPool := policy.Pools[spec.Pool]
	switch {
	case spec.TTL < time.Second || spec.TTL > admission.MaxTTL:
		return spec, fmt.Errorf("lifetime of %s, want between a second and %s", spec.TTL, admission.MaxTTL)
	case spec.Pool == "" && !hasWorkers(policy.Pools):
		return spec, fmt.Errorf("no pool is named, and the spec has no pool of workers, only %s: name a pool to admit a control plane (--pool), or add a pool of workers to the spec (spec.pools: name and roles: [worker])",
			strings.Join(slices.Sorted(maps.Keys(policy.Pools)), ", "))
	case spec.Pool == "":
		return spec, fmt.Errorf("no pool is named, and the spec has more than one pool of workers: name one of %s (--pool)", strings.Join(slices.Sorted(maps.Keys(policy.Pools)), ", "))
	case !hasPool:
		return spec, fmt.Errorf("the spec has no pool %.80q", spec.Pool)
	case spec.Node != "" && !admission.ValidName(spec.Node):
		return spec, fmt.Errorf("%.80q is not a valid name of a node", spec.Node)
	case exists && node.Pool != spec.Pool:
		return spec, fmt.Errorf("node %s is in pool %s, want %s", node.Name, node.Pool, spec.Pool)
	case exists && node.Removing:
		return spec, fmt.Errorf("node %s is being removed", node.Name)
	case spec.Key != "" && !spec.Key.Valid():
		return spec, fmt.Errorf("%.80q is not the pin of a key", spec.Key)
	case known:
		return spec, fmt.Errorf("the machine with this key is node %s and needs no token", owner.Name)
	}
	return spec, nil
}

// onlyWorkers returns the default pool: that of workers if there is exactly one, else "".
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

// Tokens returns the tokens that have not expired, and deletes those that have expired long ago.
func (r *Registry) Tokens(ctx context.Context) ([]admission.Token, error) {
	items, err := r.store.List(ctx, kindToken)
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	now := r.now()
	var out []admission.Token
	for _, item := range items {
		var t admission.Token
		if err := strictjson.Decode(item.Data, &t); err != nil {
			return nil, fmt.Errorf("list tokens: token %s: %w", item.Name, err)
		}
		switch {
		case now.Before(t.Expires):
			out = append(out, t)
		case now.After(t.Expires.Add(keepExpired)):
			_ = r.store.Delete(ctx, kindToken, item.Name, item.Version) // the next call tries again
		}
	}
	return out, nil
}

// RevokeToken deletes a token, or fails with ErrNotFound. Machines that it has admitted stay.
func (r *Registry) RevokeToken(ctx context.Context, id string) error {
	if err := r.store.Delete(ctx, kindToken, id, ""); err != nil {
		return fmt.Errorf("revoke token: %w", err)
	}
	return nil
}

// Token returns the token with this ID, and whether there is one. It may have expired.
func (r *Registry) Token(ctx context.Context, id string) (admission.Token, bool, error) {
	t, err := r.token(ctx, id)
	if t == nil {
		return admission.Token{}, false, err
	}
	return t.Token, true, err
}

// token returns nil if there is certainly no such token.
func (r *Registry) token(ctx context.Context, id string) (*storedToken, error) {
	if err := record.CheckName(kindToken, id); err != nil {
		return nil, nil //nolint:nilerr // no token has an invalid ID
	}
	var t storedToken
	var err error
	if t.version, err = r.load(ctx, kindToken, id, &t.Token); errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &t, nil
}

// use marks a token as used by a machine. Only one machine can ever succeed. If the process crashes before it writes the machine's
// record, the same machine's next request completes the admission.
func (r *Registry) use(ctx context.Context, t storedToken, key pin.Pin) error {
	t.UsedBy = key
	if _, err := r.save(ctx, kindToken, t.ID, t.version, t.Token); err != nil {
		return fmt.Errorf("use token %s: %w", t.ID, err)
	}
	return nil
}
