// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/control/lease"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/core/membership"
)

// Etcd is what internal/etcd's client can do.
type Etcd interface {
	Members(ctx context.Context) ([]membership.Member, error)
	// Health fills in Healthy. A member that does not answer is not healthy, without an error.
	Health(ctx context.Context, m membership.Member) (membership.Member, error)
}

// Peers reports how the control planes are: those whose etcd member is a voter. One that is still joining does not count.
type Peers struct {
	Etcd Etcd
	Self string
	// API says why the API server of a machine is not ready; empty when it is ready, or when no client is sent to it.
	API func(ctx context.Context, at netip.Addr) string
}

// Unwell is [Cluster.Unwell].
func (p Peers) Unwell(ctx context.Context, own bool) string {
	all, err := p.Etcd.Members(ctx)
	if err != nil {
		return "the list of etcd's members: " + err.Error()
	}
	reasons := make([]string, len(all))
	var asking sync.WaitGroup
	for i, m := range all {
		if m.Learner || m.Name == p.Self && !own {
			continue
		}
		asking.Go(func() { reasons[i] = p.ask(ctx, m) })
	}
	asking.Wait()
	return strings.Join(slices.DeleteFunc(reasons, func(s string) bool { return s == "" }), "; ")
}

func (p Peers) ask(ctx context.Context, m membership.Member) string {
	m, err := p.Etcd.Health(ctx, m)
	switch {
	case err != nil:
		return fmt.Sprintf("etcd of %s, whose health is unknown: %s", m, err)
	case !m.Healthy:
		return fmt.Sprintf("etcd of %s, which is not healthy", m)
	}
	at, ok := addressOf(m.PeerURL)
	if !ok {
		return ""
	}
	if why := p.API(ctx, at); why != "" {
		return fmt.Sprintf("the API server of %s: %s", m, why)
	}
	return ""
}

func addressOf(peerURL string) (netip.Addr, bool) {
	u, err := url.Parse(peerURL)
	if err != nil {
		return netip.Addr{}, false
	}
	at, err := netip.ParseAddr(u.Hostname())
	return at, err == nil
}

// Replicas are the same records through several API servers, the preferred one first: a machine that restarts its own API server
// renews its lease through another one.
type Replicas func() []lease.Records

var _ lease.Records = Replicas(nil)

// replicaLimit is for one API server: one that is gone says so at once, one that hangs does not.
const replicaLimit = 3 * time.Second

// Load is lease.Records.
func (r Replicas) Load(ctx context.Context, kind, name string, into any) (version string, err error) {
	return r.first(ctx, func(ctx context.Context, one lease.Records) (string, error) { return one.Load(ctx, kind, name, into) })
}

// Save is lease.Records. A write that was done although its answer was lost fails on the next server with a conflict.
func (r Replicas) Save(ctx context.Context, kind, name, version string, value any) (newVersion string, err error) {
	return r.first(ctx, func(ctx context.Context, one lease.Records) (string, error) {
		return one.Save(ctx, kind, name, version, value)
	})
}

func (r Replicas) first(ctx context.Context, ask func(context.Context, lease.Records) (string, error)) (string, error) {
	var first error
	for _, one := range r() {
		limited, cancel := context.WithTimeout(ctx, replicaLimit)
		version, err := ask(limited, one)
		cancel()
		answered := errors.Is(err, registry.ErrNotFound) || errors.Is(err, registry.ErrConflict) || errors.Is(err, registry.ErrExists)
		if err == nil || answered || ctx.Err() != nil {
			return version, err
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		first = errors.New("no API server is known")
	}
	return "", first
}
