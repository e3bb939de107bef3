// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"sync"

	"github.com/slipway-project/slipway/internal/core/membership"
)

// Etcd is what internal/etcd's client can do.
type Etcd interface {
	Members(ctx context.Context) ([]membership.Member, error)
	// Health fills in Healthy. Whoever does not answer is not healthy, without an error.
	Health(ctx context.Context, m membership.Member) (membership.Member, error)
}

// Peers tells how the control planes are: those whose etcd votes. One on its way in does not count yet.
type Peers struct {
	Etcd Etcd
	Self string
	// API says why the API server of a machine is not ready; nothing when it is, or when nobody is sent to it.
	API func(ctx context.Context, at netip.Addr) string
}

// Unwell is [Cluster.Unwell].
func (p Peers) Unwell(ctx context.Context, own bool) string {
	all, err := p.Etcd.Members(ctx)
	if err != nil {
		return "etcd's members, which cannot be asked: " + err.Error()
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
	return strings.Join(withoutEmpty(reasons), "; ")
}

func (p Peers) ask(ctx context.Context, m membership.Member) string {
	m, err := p.Etcd.Health(ctx, m)
	switch {
	case err != nil:
		return fmt.Sprintf("etcd of %s, which cannot be asked: %s", m, err)
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

func withoutEmpty(list []string) (out []string) {
	for _, s := range list {
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}
