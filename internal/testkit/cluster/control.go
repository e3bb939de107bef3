// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/slipway-project/slipway/internal/sleep"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/attest"
	attestkey "github.com/slipway-project/slipway/internal/attest/key"
	"github.com/slipway-project/slipway/internal/attest/token"
	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/rosters"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/wait"
	agentnode "github.com/slipway-project/slipway/internal/node"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/node/rosterfile"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// joinService is the join service of one control plane, assembled as in cmd/slipway.
type joinService struct {
	pin     pin.Pin // of the join CA
	cluster *cluster
	records *registry.Registry
	members *members.Manager
	rosters *rosters.Publisher
	server  *joinserver.Server
	ended   chan struct{} // closed when it has stopped serving
}

// control is the control role: it registers the operator's nodes as soon as the API server responds, and runs the join
// service.
func (a *agent) control(ctx context.Context, text []byte, board *reconcile.Board) error {
	board.Set(reconcile.Status{Ref: "control/records", Phase: reconcile.Waiting, For: wait.For{What: "the API server", Who: "this machine"}})
	board.Set(reconcile.Status{Ref: agentnode.ControlRole, Phase: reconcile.Ready})
	var doc document
	if err := json.Unmarshal(text, &doc); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.register(ctx, doc, board) })
	group.Go(func() error { return a.serveJoins(ctx, doc) })
	return group.Wait()
}

// cluster returns the cluster of the join CA on the machine's disk, or nil. It reads the disk before it checks that the
// agent is alive, because the writes of a dead agent must not start a cluster.
func (a *agent) cluster() *cluster {
	pin := certPin(a.root + pkiDir + "/join-ca.crt")
	if a.alive() != nil {
		return nil
	}
	return a.m.w.cluster(pin)
}

func (a *agent) records(doc document) (*cluster, *registry.Registry) {
	c := a.cluster()
	if c == nil {
		return nil, nil
	}
	return c, registry.New(store{a, c, a.m}, a.now).WithPolicy(func(context.Context) (admission.Policy, error) { return policy(), nil })
}

func (a *agent) register(ctx context.Context, doc document, board *reconcile.Board) error {
	for {
		if _, records := a.records(doc); records != nil {
			err := records.Register(ctx, doc.Nodes)
			if err == nil {
				board.Set(reconcile.Status{Ref: "control/records", Phase: reconcile.Ready})
				<-ctx.Done()
				return nil
			}
		}
		if err := sleep.For(ctx, 300*time.Millisecond); err != nil {
			return err
		}
	}
}

func (a *agent) serveJoins(ctx context.Context, doc document) error {
	if _, err := a.lock.Wait(ctx, func(s lock.State) bool { return s.Phase == lock.Committed }); err != nil {
		return err
	}
	s, err := a.joinService(doc)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.members.Run(ctx) })
	group.Go(func() error { return a.rollout.Run(ctx, a.others(s.cluster, doc)) })
	group.Go(func() error { return s.rosters.Run(ctx) })
	group.Go(func() error { return s.server.Run(ctx) })
	a.joins.Store(s)
	err = group.Wait()
	a.joins.Store(nil)
	close(s.ended)
	return err
}

func (a *agent) joinService(doc document) (*joinService, error) {
	joinCA := readCert(a.root + pkiDir + "/join-ca.crt")
	c, records := a.records(doc)
	if joinCA == nil || c == nil {
		return nil, errors.New("the join CA does not exist")
	}
	id := c.pin.ClusterID()
	log := slog.New(slog.DiscardHandler)
	s := &joinService{pin: c.pin, cluster: c, records: records, ended: make(chan struct{})}
	s.members = members.New(members.Config{Etcd: etcd{a, c, doc.Self}, Records: records, Log: log, Now: a.now, Promoted: func() { s.rosters.Poke() }})
	s.rosters = rosters.New(rosters.Config{
		CA: joinCA, Sign: a.signRoster, Records: records, Voters: voters(s.members), Log: log,
		Floor: func() uint64 { return rosterfile.Open(a.root+rosterFile, joinCA).Generation() },
	})
	var err error
	s.server, err = joinserver.New(joinserver.Config{
		Cluster: id, Self: a.pin, Records: records, Log: log, Audit: a.audit, Now: a.now,
		Verifiers: map[string]attest.Verifier{"key": attestkey.Verifier{}, "token": token.Verifier{Records: records}},
		Tickets: tickets{a, id, doc, func() []byte {
			signed, _, _ := s.rosters.Current()
			return signed
		}},
		Signer: a.custody, Members: s.members, Rosters: s.rosters,
		Heartbeat: func(ctx context.Context, node string) (bool, error) {
			return a.m.w.hears(node), store{a, c, a.m}.ask(ctx)
		},
		ControlPlane: func(pool string) bool { return pool == poolMain },
	})
	return s, err
}

func (a *agent) audit(e joinserver.Entry) {
	a.m.w.note("%s: audit %s %s %s %s", a.m.name, e.Call, e.Node, e.Reason, e.Detail)
	a.m.w.heard(e)
}

func (a *agent) signRoster(digest []byte) ([]byte, error) {
	text, err := os.ReadFile(a.root + pkiDir + "/join-ca.key")
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no PEM block")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(*ecdsa.PrivateKey)
	if err != nil || !ok {
		return nil, fmt.Errorf("not an ECDSA key: %w", err)
	}
	return ecdsa.SignASN1(rand.Reader, key, digest)
}

func voters(m *members.Manager) func(ctx context.Context) ([]string, error) {
	return func(ctx context.Context) (names []string, err error) {
		all, err := m.Status(ctx)
		for name, s := range all {
			if s.Member == "voter" && !s.Unknown {
				names = append(names, name)
			}
		}
		return names, err
	}
}
