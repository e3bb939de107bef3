// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/kube"
)

// seen is what the sources said. A source that did not answer is an error and says nothing about any node.
type seen struct {
	now     time.Time
	desired control.Desired
	records map[string]admission.Node
	nodes   map[string]kube.NodeInfo
	members map[string]members.State

	noRecords, noNodes, noMembers error
}

// ListNodes tells of every node that any source knows. It fails only when none knows a name.
func (s *server) ListNodes(ctx context.Context, _ *controlv1.ListNodesRequest) (*controlv1.ListNodesReply, error) {
	all := s.look(ctx)
	if all.noRecords != nil && all.noNodes != nil {
		return nil, status.Errorf(codes.Unavailable, "list nodes: neither the records (%v) nor Kubernetes (%v) can be read", all.noRecords, all.noNodes)
	}
	names := map[string]bool{}
	for name := range all.records {
		names[name] = true
	}
	for name := range all.nodes {
		names[name] = true
	}
	reply := &controlv1.ListNodesReply{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		reply.Nodes = append(reply.Nodes, all.node(name))
	}
	return reply, nil
}

// look asks all sources at once.
func (s *server) look(ctx context.Context) seen {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	out := seen{now: time.Now(), records: map[string]admission.Node{}, nodes: map[string]kube.NodeInfo{}}
	out.desired, _ = s.Desired()
	var asked sync.WaitGroup
	asked.Go(func() {
		var records []admission.Node
		records, out.noRecords = s.Nodes.Nodes(ctx)
		for _, n := range records {
			out.records[n.Name] = n
		}
	})
	asked.Go(func() {
		var nodes []kube.NodeInfo
		nodes, out.noNodes = s.Kube.ListNodes(ctx)
		for _, n := range nodes {
			out.nodes[n.Name] = n
		}
	})
	asked.Go(func() { out.members, out.noMembers = s.Members.Status(ctx) })
	asked.Wait()
	return out
}

func (a seen) node(name string) *controlv1.Node {
	rec, recorded := a.records[name]
	info, there := a.nodes[name]
	out := &controlv1.Node{
		Name: name, Roles: info.Roles, Ready: info.Ready, Version: info.Version, PodCidr: info.PodCIDR, Unschedulable: info.Unschedulable,
		Key: string(rec.Key), Member: a.members[name].Member,
	}
	if recorded {
		out.PodCidr, out.Facts = rec.PodCIDR.String(), rec.Facts.Encode()
		if i := slices.IndexFunc(a.desired.Config.Pools, func(p config.Pool) bool { return p.Name == rec.Pool }); i >= 0 {
			out.Roles = slices.Sorted(slices.Values(a.desired.Config.Pools[i].Roles))
		}
	}
	addresses := info.Addresses
	if rec.Address.IsValid() && !slices.Contains(addresses, rec.Address) {
		addresses = append([]netip.Addr{rec.Address}, addresses...)
	}
	for _, addr := range addresses {
		out.Addresses = append(out.Addresses, addr.String())
	}
	out.Waiting = strings.Join(slices.Concat(a.ofRecord(rec, recorded), a.ofKubernetes(info, there, rec, recorded), a.ofEtcd(name, rec, recorded)), "; ")
	return out
}

func (a seen) ofRecord(rec admission.Node, recorded bool) (why []string) {
	switch {
	case a.noRecords != nil:
		return []string{fmt.Sprintf("the records cannot be read: %v", a.noRecords)}
	case !recorded:
		return []string{"it has no record: it was removed, or never let in by this cluster"}
	}
	if rec.Removing {
		why = append(why, fmt.Sprintf("it is being removed: slipway node remove %s goes on with it", rec.Name))
	}
	if rec.PendingKey != "" {
		why = append(why, fmt.Sprintf("another machine asks for its name, %s: slipway node approve %s lets it in", rec.PendingKey, rec.Name))
	}
	if rec.AsksElsewhere(a.now) {
		why = append(why, fmt.Sprintf("its key is shown at %s too, which is refused while it is alive here: a copy of its disk? Switch one of the two off; "+
			"slipway node approve %s makes %s its address", rec.Elsewhere, rec.Name, rec.Elsewhere))
	}
	return why
}

func (a seen) ofKubernetes(info kube.NodeInfo, there bool, rec admission.Node, recorded bool) []string {
	switch {
	case a.noNodes != nil:
		return []string{fmt.Sprintf("Kubernetes does not answer: %v", a.noNodes)}
	case !there && recorded && string(rec.Key) == "":
		return []string{"no machine has come for this name"}
	case !there:
		return []string{"its kubelet has not registered"}
	case !info.Ready:
		return []string{info.Reason}
	}
	return nil
}

func (a seen) ofEtcd(name string, rec admission.Node, recorded bool) []string {
	one, member := a.members[name]
	switch {
	case !recorded || !isControlPlane(a.desired, rec):
		return nil
	case a.noMembers != nil:
		return []string{fmt.Sprintf("etcd does not answer: %v", a.noMembers)}
	case one.Wait != nil:
		return []string{fmt.Sprintf("%s (%s)", one.Wait.What, one.Wait.Who)}
	case !member && string(rec.Key) != "":
		return []string{"it is no member of etcd yet"}
	case one.Member == "learner":
		return []string{"its etcd learns what the others know"}
	case member && !one.Healthy:
		return []string{"its etcd does not answer"}
	}
	return nil
}
