// SPDX-License-Identifier: Apache-2.0

// Package service assembles what a control plane runs for its cluster next to the control role: the join service, etcd
// membership, rosters, the rollout lease, the component store, and the administration service for the operator. Each of them
// has a package of its own; this one connects them with each other and with the files of the machine.
//
// Read [Service] first.
package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/attest"
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
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/rpc"
)

// Config is what main gives a service.
type Config struct {
	Pin      pin.Pin    // of this machine's key
	Lock     *lock.Lock // of this machine
	Rollout  *rollout.Manager
	StoreDir string // the component store of this machine
	AuditLog string // file with one line per decision about a machine
	// Verifiers returns the kinds of attestation that machines may use to join.
	Verifiers func(token.Records) map[string]attest.Verifier
	Hooks     Hooks
	Log       *slog.Logger
}

// Hooks are the points where tests interfere with a real agent. In released programs they do nothing.
type Hooks interface {
	Now() time.Time
	Etcd(c *etcd.Client) members.Etcd
	Audit(next func(joinserver.Entry)) func(joinserver.Entry)
}

// Service is what runs on a control plane while its control role runs. It is made once; what it consists of is assembled again
// for each control document.
type Service struct {
	Config
	audit *auditLog
	admin atomic.Pointer[controlv1.ControlServer] // nil while the service is not running
}

// New makes a service.
func New(c Config) *Service {
	return &Service{Config: c, audit: &auditLog{path: c.AuditLog, log: c.Log}}
}

// RunRole runs the control role with a control document, and the service with it, until ctx ends.
func (s *Service) RunRole(ctx context.Context, doc []byte, board *reconcile.Board) error {
	return control.Role{
		Connect: func(kubeconfig string) (control.Cluster, error) { return control.Connect(kubeconfig, s.Log) },
		Records: func(kubeconfig string) (control.Records, error) {
			client, err := kube.Connect(kubeconfig, s.Log)
			if err != nil {
				return nil, err
			}
			return registry.New(client.Records(), s.Hooks.Now), nil
		},
		Services: []control.Service{{Name: "join", Run: s.run}},
		Resolve:  control.ResolveUDP, RootCA: config.ClusterCA + ".crt", Board: board, Log: s.Log,
	}.Run(ctx, doc)
}

// run is a control.Service. It starts when the machine belongs to its cluster permanently.
func (s *Service) run(ctx context.Context, d control.Desired, waiting func(reason string)) error {
	waiting("the machine has not committed to its cluster yet")
	if _, err := s.Lock.Wait(ctx, func(s lock.State) bool { return s.Phase == lock.Committed }); err != nil {
		return err
	}
	p, err := s.assemble(d)
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
	group.Go(func() error { return s.Rollout.Run(ctx, p.peers) })
	group.Go(func() error { return p.joins.Run(ctx) })
	group.Go(func() error {
		s.serveStore(ctx)
		return nil
	})
	group.Go(func() error {
		defer context.AfterFunc(ctx, p.server.Stop)()
		if err := p.server.Serve(ln); ctx.Err() == nil {
			return err
		}
		return nil
	})
	s.admin.Store(&p.admin)
	defer s.admin.Store(nil)
	waiting("")
	return group.Wait()
}

// parts are what the service consists of.
type parts struct {
	etcd    *etcd.Client
	members *members.Manager
	rosters *rosters.Publisher
	joins   *joinserver.Server
	server  *rpc.Server
	admin   controlv1.ControlServer
	peers   rollout.Cluster
}

func (s *Service) assemble(d control.Desired) (p parts, err error) {
	joinCA, err := readCertificate(config.JoinCA + ".crt")
	if err != nil {
		return p, err
	}
	id := pin.OfCertificate(joinCA).ClusterID()
	policy := compose.Policy(d.Config, d.Release)
	client, err := kube.Connect(config.ControlConf, s.Log)
	if err != nil {
		return p, err
	}
	records := registry.New(client.Records(), s.Hooks.Now).WithPolicy(func(context.Context) (admission.Policy, error) { return policy, nil })
	if p.etcd, err = etcd.Connect(etcd.Config{
		Endpoints: []string{"https://127.0.0.1:2379"}, CA: config.EtcdCA + ".crt", Cert: config.APIServerToEtcd + ".crt", Key: config.APIServerToEtcd + ".key",
	}); err != nil {
		return p, err
	}
	p.peers = otherControlPlanes(d, records, client, p.etcd, joinCA)
	p.members = members.New(members.Config{Etcd: s.Hooks.Etcd(p.etcd), Records: records, Log: s.Log, Now: s.Hooks.Now, Promoted: func() { p.rosters.Poke() }})
	p.rosters = rosters.New(rosters.Config{
		CA: joinCA, Sign: signWith(config.JoinCA + ".key"), Records: records, Voters: voters(p.members), Log: s.Log,
		Extra: loadBalancer(d.Config),
		Floor: func() uint64 { return rosterfile.Open(config.RosterFile, joinCA).Generation() }, // as it is on the disk now
	})
	p.joins, err = joinserver.New(joinserver.Config{
		Cluster: id, Self: s.Pin, Records: records, Log: s.Log, Audit: s.Hooks.Audit(s.audit.decision),
		Verifiers: s.Verifiers(records),
		Tickets: tickets.Maker{ID: id, Desired: d, Roster: func() []byte {
			signed, _, _ := p.rosters.Current()
			return signed
		}},
		Now:    s.Hooks.Now,
		Signer: &ca.Local{Now: s.Hooks.Now}, Members: p.members, Rosters: p.rosters,
		Heartbeat:    client.NodeAlive,
		ControlPlane: func(pool string) bool { return policy.Pools[pool].ControlPlane },
		ByAddress:    func(pool string) bool { return policy.Pools[pool].ByAddress },
	})
	if err != nil {
		return p, errors.Join(err, p.etcd.Close())
	}
	p.server = rpc.NewServer(rpc.ServerOptions{
		TLS: rpc.ServerTLS(joinCertificate, rpc.AnyKey), Log: s.Log, Audit: s.audit.refused,
		Authorize: p.joins.Rules(), Timeout: joinserver.Timeouts(),
	})
	joinv1.RegisterJoinServer(p.server, p.joins.Service())
	p.admin = admin.New(admin.Config{
		Nodes: records, Tokens: records, Kube: client, Members: p.members, Log: s.Log,
		Desired: func() (control.Desired, bool) { return d, true },
		Invite: func(ctx context.Context) (admin.Invitation, error) {
			return invite(ctx, p.rosters, joinCA)
		},
	})
	return p, nil
}

// voters returns the control planes whose etcd member is a voter.
func voters(m *members.Manager) func(ctx context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		all, err := m.Status(ctx)
		if err != nil {
			return nil, err
		}
		var names []string
		for name, s := range all {
			if s.Member == "voter" && !s.Unknown {
				names = append(names, name)
			}
		}
		return names, nil
	}
}

// loadBalancer is where clients find the API in addition to the control planes: the spec's load balancer, if it names one.
func loadBalancer(c config.Cluster) []string {
	if c.LoadBalancer.IsZero() {
		return nil
	}
	return []string{c.LoadBalancer.String()}
}
