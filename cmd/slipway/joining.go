// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/attest"
	attestkey "github.com/slipway-project/slipway/internal/attest/key"
	"github.com/slipway-project/slipway/internal/attest/token"
	"github.com/slipway-project/slipway/internal/ca"
	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/control/admin"
	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/rollout"
	"github.com/slipway-project/slipway/internal/control/rosters"
	"github.com/slipway-project/slipway/internal/control/tickets"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/etcd"
	"github.com/slipway-project/slipway/internal/kube"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/node/rosterfile"
	"github.com/slipway-project/slipway/internal/rpc"
)

// joining is the join service of this control plane: all that it is made of is built anew for each control document.
type joining struct {
	pin     pin.Pin // of this machine's key
	lock    *lock.Lock
	audit   *audit
	crash   failpoints
	log     *slog.Logger
	rollout *rollout.Manager
	admin   atomic.Pointer[controlv1.ControlServer] // nil while there is nothing to ask
}

// run is a control.Service. It begins when the machine belongs to its cluster for good.
func (j *joining) run(ctx context.Context, doc control.Document, say func(reason string)) error {
	say("the machine does not belong to its cluster yet")
	if _, err := j.lock.Wait(ctx, func(s lock.State) bool { return s.Phase == lock.Committed }); err != nil {
		return err
	}
	p, err := j.assemble(doc)
	if err != nil {
		return err
	}
	defer func() { _ = p.etcd.Close() }()
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", config.JoinPort))
	if err != nil {
		return fmt.Errorf("listen for machines that join: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.members.Run(ctx) })
	group.Go(func() error { return p.rosters.Run(ctx) })
	group.Go(func() error { return j.rollout.Run(ctx, p.others) })
	group.Go(func() error { return p.joins.Run(ctx) })
	group.Go(func() error {
		serveStore(ctx, j.log)
		return nil
	})
	group.Go(func() error {
		defer context.AfterFunc(ctx, p.server.Stop)()
		if err := p.server.Serve(ln); ctx.Err() == nil {
			return err
		}
		return nil
	})
	j.admin.Store(&p.admin)
	defer j.admin.Store(nil)
	say("")
	return group.Wait()
}

// parts are what a join service is made of.
type parts struct {
	etcd    *etcd.Client
	members *members.Manager
	rosters *rosters.Keeper
	joins   *joinserver.Server
	server  *rpc.Server
	admin   controlv1.ControlServer
	others  rollout.Cluster
}

func (j *joining) assemble(doc control.Document) (p parts, err error) {
	joinCA, err := readCertificate(config.JoinCA + ".crt")
	if err != nil {
		return p, err
	}
	id := pin.OfCertificate(joinCA).ClusterID()
	cluster, release, err := compose.Stored(doc.Config, doc.Cluster)
	if err != nil {
		return p, err
	}
	policy := policyOf(cluster, release)
	client, err := kube.Connect(doc.Kubeconfig, j.log)
	if err != nil {
		return p, err
	}
	records := registry.New(client.Records(), j.crash.now).WithPolicy(func(context.Context) (admission.Policy, error) { return policy, nil })
	if p.etcd, err = etcd.Connect(etcd.Config{
		Endpoints: []string{"https://127.0.0.1:2379"}, CA: config.EtcdCA + ".crt", Cert: config.APIServerToEtcd + ".crt", Key: config.APIServerToEtcd + ".key",
	}); err != nil {
		return p, err
	}
	p.others = others(doc, records, client, p.etcd, joinCA)
	p.members = members.New(members.Config{Etcd: j.crash.etcd(p.etcd), Records: records, Log: j.log, Now: j.crash.now, Promoted: func() { p.rosters.Poke() }})
	p.rosters = rosters.New(rosters.Config{
		CA: joinCA, Sign: signWith(config.JoinCA + ".key"), Records: records, Voters: voters(p.members), Log: j.log,
		Extra: doc.Further,
		Floor: func() uint64 { return rosterfile.Open(config.RosterFile, joinCA).Generation() }, // as the disk has it now
	})
	p.joins, err = joinserver.New(joinserver.Config{
		Cluster: id, Self: j.pin, Records: records, Log: j.log, Audit: j.crash.audit(j.audit.decision),
		Verifiers: map[string]attest.Verifier{"key": attestkey.Verifier{}, "token": token.Verifier{Records: records}},
		Tickets: tickets.Maker{ID: id, Document: doc, Cluster: cluster, Roster: func() []byte {
			signed, _, _ := p.rosters.Current()
			return signed
		}},
		Now:    j.crash.now,
		Signer: &ca.Local{Now: j.crash.now}, Members: p.members, Rosters: p.rosters,
		Alive:        client.NodeAlive,
		ControlPlane: func(pool string) bool { return policy.Pools[pool].ControlPlane },
		ByAddress:    func(pool string) bool { return policy.Pools[pool].ByAddress },
	})
	if err != nil {
		return p, errors.Join(err, p.etcd.Close())
	}
	p.server = rpc.NewServer(rpc.ServerOptions{
		TLS: rpc.ServerTLS(joinCertificate, rpc.AnyKey), Log: j.log, Audit: j.audit.refused,
		Authorize: p.joins.Rules(), Timeout: joinserver.Timeouts(),
	})
	joinv1.RegisterJoinServer(p.server, p.joins.Service())
	p.admin = admin.New(admin.Config{
		Nodes: records, Tokens: records, Kube: client, Members: p.members, Log: j.log,
		Document: func() (control.Document, bool) { return doc, true },
		Invite: func(ctx context.Context) (admin.Invitation, error) {
			return invitation(ctx, p.rosters, joinCA)
		},
	})
	return p, nil
}
