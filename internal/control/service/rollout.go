// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"crypto/x509"
	"net/netip"
	"time"

	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/control/lease"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/rollout"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/etcd"
	"github.com/slipway-project/slipway/internal/kube"
	"github.com/slipway-project/slipway/internal/node/rosterfile"
)

// otherControlPlanes returns what the rollout lease needs to know about the other control planes. It asks the API servers of the
// roster, the machine's own first.
func otherControlPlanes(doc control.Desired, own lease.Records, client *kube.Client, members *etcd.Client, joinCA *x509.Certificate) rollout.Cluster {
	servers := func() map[netip.Addr]*kube.Client { return apiServers(client, joinCA) }
	peers := rollout.Peers{Etcd: members, Self: doc.Self, API: func(ctx context.Context, at netip.Addr) string {
		all := servers()
		if len(all) == 0 {
			return "the roster has no API servers"
		}
		if server := all[at]; server != nil {
			return server.Unready(ctx)
		}
		return "" // not in the roster: clients do not use it
	}}
	return rollout.Cluster{
		Self: doc.Self, Several: doc.Several(), Unwell: peers.Unwell,
		Records: rollout.Replicas(func() []lease.Records {
			all := []lease.Records{own}
			for _, server := range servers() {
				all = append(all, registry.New(server.Records(), time.Now))
			}
			return all
		}),
	}
}

// apiServers returns the API servers of the stored roster, by address; none while there is no roster.
func apiServers(client *kube.Client, joinCA *x509.Certificate) map[netip.Addr]*kube.Client {
	r, err := rosterfile.Load(config.RosterFile, joinCA)
	if err != nil {
		return nil
	}
	out := map[netip.Addr]*kube.Client{}
	for _, at := range r.API {
		if server, err := client.At("https://" + at.String()); err == nil {
			out[at.Addr()] = server
		}
	}
	return out
}
