// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Certificate is one certificate of one node, as it lies on its disk.
type Certificate struct {
	Node    string    `json:"node"`
	Name    string    `json:"name"`
	Kind    string    `json:"kind"` // CA or Leaf
	Signer  string    `json:"signer,omitempty"`
	Subject string    `json:"subject"`
	Path    string    `json:"path"`
	Issued  time.Time `json:"issued,omitzero"` // zero, with all below: there is none that can be read
	Expires time.Time `json:"expires,omitzero"`
	Renewed time.Time `json:"renewed,omitzero"` // when it is renewed by itself; zero: it is not
}

// Renewal is what was issued anew on one node, and what that led to.
type Renewal struct {
	Node  string   `json:"node"`
	Names []string `json:"certificates"`
	Units []string `json:"restarted"` // units that were restarted because of it
}

// Certificates lists those of the named nodes, or of all that run. With an error that is not all; the rest is returned beside it.
func (l *Launcher) Certificates(ctx context.Context, cluster string, nodes []string) ([]Certificate, error) {
	list, err := l.machinesNamed(ctx, cluster, nodes)
	if err != nil {
		return nil, err
	}
	all, errs := []Certificate{}, []error(nil)
	for _, t := range list {
		found, err := t.certificates(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("certificates of %s: %w", t.machine, plain(err)))
		}
		all = append(all, found...)
	}
	return all, errors.Join(errs...)
}

func (t target) certificates(ctx context.Context) (out []Certificate, err error) {
	if t.dial == nil {
		return nil, machine.ErrNotRunning
	}
	err = withAgent(ctx, t, func(ctx context.Context, a *Agent) error {
		r, err := a.client.Certificates(ctx, &nodev1.CertificatesRequest{}, grpc.WaitForReady(true))
		for _, c := range r.GetCertificates() {
			out = append(out, Certificate{
				Node: t.machine, Name: c.GetName(), Kind: c.GetKind(), Signer: c.GetSigner(), Subject: c.GetSubject(), Path: c.GetPath(),
				Issued: second(c.GetNotBeforeUnix()), Expires: second(c.GetNotAfterUnix()), Renewed: second(c.GetRenewedUnix()),
			})
		}
		return err
	})
	return out, err
}

// RenewCertificates has certificates issued anew now, on one node after the other, and waits until each node is ready again. No
// nodes: all; no names: all certificates that can be renewed. It goes on when a node fails.
func (l *Launcher) RenewCertificates(ctx context.Context, cluster string, nodes, names []string, say func(node, what string)) ([]Renewal, error) {
	list, err := l.machinesNamed(ctx, cluster, nodes)
	if err != nil {
		return nil, err
	}
	done, errs := []Renewal{}, []error(nil)
	for _, t := range list {
		r, err := t.renew(ctx, names, func(what string) { say(t.machine, what) })
		if ctx.Err() != nil {
			return done, ctx.Err()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("renew certificates of %s: %w", t.machine, plain(err)))
			continue
		}
		done = append(done, r)
	}
	return done, errors.Join(errs...)
}

func (t target) renew(ctx context.Context, names []string, say func(string)) (Renewal, error) {
	r := Renewal{Node: t.machine, Units: []string{}}
	if t.dial == nil {
		return r, fmt.Errorf("%w: its certificates are renewed by themselves when it does", machine.ErrNotRunning)
	}
	agent, err := dialAgent(t.dial)
	if err != nil {
		return r, err
	}
	defer agent.Close()
	limited, cancel := context.WithTimeout(ctx, agentPatience)
	answer, err := agent.client.Renew(limited, &nodev1.RenewRequest{Names: names}, grpc.WaitForReady(true))
	cancel()
	if err != nil {
		return r, err
	}
	r.Names = answer.GetNames()
	steps := map[string]bool{}
	err = agent.Watch(ctx, func(s reconcile.Status, converged bool, _ int) bool {
		switch {
		case s.Phase == reconcile.Failing:
			say(s.Ref + ": " + s.Error)
		case s.Phase == reconcile.Waiting && strings.HasPrefix(s.Ref, "unit/"):
			say(s.Ref + ": waiting for " + s.What)
		}
		if unit, ok := unitDone(s); ok {
			steps[unit] = true
		}
		return converged
	})
	for unit := range steps {
		r.Units = append(r.Units, unit)
	}
	slices.Sort(r.Units)
	return r, err
}

// unitDone is the name of a unit that is being exchanged now.
func unitDone(s reconcile.Status) (string, bool) {
	name, isUnit := strings.CutPrefix(s.Ref, "unit/")
	return name, isUnit && s.Phase == reconcile.Doing && s.Step != nil && s.Step.Verb == plan.Replace // what is made is no restart
}

// machinesNamed are the named machines, or all of a cluster; one that does not run has no way to its agent.
func (l *Launcher) machinesNamed(ctx context.Context, cluster string, names []string) (out []target, err error) {
	machines, list, err := l.machinesOf(ctx, cluster)
	if errors.Is(err, ErrNoCluster) && isSocket(OwnSocket) { // this host is a machine itself
		for _, name := range names {
			if !isThisHost(name) {
				return nil, fmt.Errorf("machine %s is not this one: ask it there", name)
			}
		}
		return []target{{"this machine", ownAgent}}, nil
	}
	if err != nil {
		return nil, err
	}
	for _, name := range append([]string{""}, names...) { // a cluster without any machine is an error, too
		if _, err := pick(cluster, list, name); err != nil {
			return nil, err
		}
	}
	for _, m := range list {
		switch {
		case len(names) > 0 && !slices.Contains(names, m.Name):
		case m.Running:
			out = append(out, target{m.Name, toAgent(machines.At(m.Name))})
		default:
			out = append(out, target{machine: m.Name})
		}
	}
	return out, nil
}

func second(unix int64) time.Time {
	if unix == 0 {
		return time.Time{}
	}
	return time.Unix(unix, 0).UTC()
}
