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

// Etcd reads the cluster's members; the client of internal/etcd implements it.
type Etcd interface {
	Members(ctx context.Context) ([]membership.Member, error)
	// Health fills in Healthy. A member that does not answer is unhealthy; that is not an error.
	Health(ctx context.Context, m membership.Member) (membership.Member, error)
}

// Peers checks the health of the control planes whose etcd member is a voter. It ignores one that is still joining.
type Peers struct {
	Etcd Etcd
	Self string
	// API returns why the API server of a machine is not ready, or "" if it is ready or no client is sent to it.
	API func(ctx context.Context, at netip.Addr) string
}

// Unwell implements [Cluster.Unwell].
func (p Peers) Unwell(ctx context.Context, own bool) string {
	all, err := p.Etcd.Members(ctx)
	if err != nil {
		return "the list of etcd's members: " + err.Error()
	}
	reasons := make([]string, len(all))
	var checks sync.WaitGroup
	for i, m := range all {
		if m.Learner || m.Name == p.Self && !own {
			continue
		}
		checks.Go(func() { reasons[i] = p.check(ctx, m) })
	}
	checks.Wait()
	return strings.Join(slices.DeleteFunc(reasons, func(s string) bool { return s == "" }), "; ")
}

func (p Peers) check(ctx context.Context, m membership.Member) string {
	m, err := p.Etcd.Health(ctx, m)
	switch {
	case err != nil:
		return fmt.Sprintf("etcd of %s, whose health is unknown: %s", m, err)
	case !m.Healthy:
		return fmt.Sprintf("etcd of %s, which is not healthy", m)
	}
	u, err := url.Parse(m.PeerURL)
	if err != nil {
		return ""
	}
	at, err := netip.ParseAddr(u.Hostname())
	if err != nil {
		return ""
	}
	if why := p.API(ctx, at); why != "" {
		return fmt.Sprintf("the API server of %s: %s", m, why)
	}
	return ""
}

// Replicas returns the same records through several API servers, the preferred one first. A machine that restarts its own API
// server renews its lease through another one.
type Replicas func() []lease.Records

var _ lease.Records = Replicas(nil)

// replicaLimit bounds a request to one API server. It matters for a server that hangs; one that is down fails at once.
const replicaLimit = 3 * time.Second

// Load implements lease.Records.
func (r Replicas) Load(ctx context.Context, kind, name string, into any) (version string, err error) {
	return r.first(ctx, func(ctx context.Context, one lease.Records) (string, error) { return one.Load(ctx, kind, name, into) })
}

// Save implements lease.Records. If a server writes the record but its answer is lost, the next server reports a conflict.
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
		first = errors.New("no API server known")
	}
	return "", first
}
