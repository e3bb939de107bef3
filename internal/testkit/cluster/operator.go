// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/initclient"
	"github.com/slipway-project/slipway/internal/node"
	"github.com/slipway-project/slipway/internal/node/lock"
)

// outcome is the result of an init request.
type outcome struct {
	done   chan struct{}
	result initclient.Result
	err    error
}

func (o *outcome) over() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// initWord: init n1 [as REQUEST] [wrong-secret] [no-secret].
func (t *teller) initWord(args []string) error {
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	id, secret := "request-"+m.name, m.secret()
	for i, a := range args {
		switch {
		case a == "as" && i+1 < len(args):
			id = args[i+1]
		case a == "wrong-secret":
			secret = "wrong"
		}
	}
	i := slices.IndexFunc(t.prepared, func(n member) bool { return n.machine == m.name })
	ticket, err := t.initTicket(t.prepared[i].name, m)
	if err != nil {
		return err
	}
	pin, err := m.pin()
	if err != nil {
		return err
	}
	o := &outcome{done: make(chan struct{})}
	t.mu.Lock()
	t.inits[id] = o
	m.joining = true
	t.mu.Unlock()
	t.work.Go(func() {
		defer close(o.done)
		ctx, cancel := context.WithTimeout(t.ctx, 4*settleLimit)
		defer cancel()
		client, err := initclient.Dial(ctx, m.address.String()+":9440", pin, secret, m.dialInit)
		if err != nil {
			o.err = err
			return
		}
		defer func() { _ = client.Close() }()
		if _, o.err = client.Init(ctx, id, ticket); o.err == nil {
			o.result, o.err = client.Watch(ctx, id, nil)
		}
		t.note("init %s: cluster %q, %v", id, o.result.Cluster, o.err)
	})
	return nil
}

// controlPlane waits for a reachable control plane that is committed to its cluster and whose records can be read.
func (t *teller) controlPlane() (*agent, *joinService, error) {
	for end := time.Now().Add(settleLimit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		for _, m := range t.order {
			a := m.running()
			if a == nil || !m.reachable() || a.lock.State().Phase != lock.Committed {
				continue
			}
			s := a.joins.Load()
			if s == nil || !s.cluster.hasQuorum() {
				continue
			}
			ctx, cancel := context.WithTimeout(t.ctx, 5*time.Second)
			_, err := s.records.Nodes(ctx)
			cancel()
			if err == nil {
				return a, s, nil
			}
		}
	}
	return nil, nil, errors.New("no control plane responds")
}

// joinWord: join n2 control-plane|worker [token [NAME]] [via n1 …] [unawaited].
func (t *teller) joinWord(args []string) error {
	if len(args) < 2 {
		return errors.New("join MACHINE ROLE")
	}
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	rest := args[2:]
	m.mu.Lock()
	m.joining = true
	m.hopeless = len(rest) > 0 && rest[len(rest)-1] == "unawaited"
	m.mu.Unlock()
	t.work.Go(func() {
		if err := t.invite(m, pool(args[1]), rest); err != nil && t.ctx.Err() == nil {
			t.wrong("invite %s: %v", m.name, err)
		}
	})
	return nil
}

func (t *teller) invite(m *machine, pool string, rest []string) error {
	_, s, err := t.controlPlane()
	if err != nil {
		return err
	}
	target := node.JoinTarget{Pin: s.pin}
	via := []string{}
	for _, n := range t.prepared {
		if n.pool == poolMain && n.machine != m.name {
			via = append(via, n.machine)
		}
	}
	for i := 0; i < len(rest); i++ {
		switch {
		case rest[i] == "via":
			via = slices.DeleteFunc(slices.Clone(rest[i+1:]), func(s string) bool { return s == "unawaited" })
			i = len(rest)
		case rest[i] == "token" && i+1 < len(rest) && t.token(rest[i+1]) != "":
			target.Token = t.token(rest[i+1])
		case rest[i] == "token":
			if target.Token, err = t.newToken(registry.TokenSpec{Pool: pool}); err != nil {
				return err
			}
		}
	}
	for _, name := range via {
		target.Endpoints = append(target.Endpoints, t.machines[name].address.String()+":9440")
	}
	m.mu.Lock()
	m.target, m.told = &target, false
	m.mu.Unlock()
	m.tell(target)
	return nil
}

func (t *teller) token(name string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tokens[name]
}

func (t *teller) newToken(spec registry.TokenSpec) (string, error) {
	for range 100 {
		_, s, err := t.controlPlane()
		if err != nil {
			return "", err
		}
		ctx, cancel := context.WithTimeout(t.ctx, 10*time.Second)
		_, text, err := s.records.CreateToken(ctx, spec)
		cancel()
		if err == nil {
			return text, nil
		}
		time.Sleep(time.Second)
	}
	return "", errors.New("create token: no control plane responds")
}

// tokenWord: token NAME ROLE [for MACHINE] [node NODE] [ttl TIME].
func (t *teller) tokenWord(args []string) error {
	if len(args) < 2 {
		return errors.New("token NAME ROLE")
	}
	spec := registry.TokenSpec{Pool: pool(args[1])}
	for i := 2; i+1 < len(args); i += 2 {
		switch args[i] {
		case "for":
			m, err := t.machine(args[i+1])
			if err != nil {
				return err
			}
			if spec.Key, err = m.pin(); err != nil {
				return err
			}
		case "node":
			spec.Node = args[i+1]
		case "ttl":
			d, err := time.ParseDuration(args[i+1])
			if err != nil {
				return err
			}
			spec.TTL = d
		default:
			return fmt.Errorf("unknown argument %q", args[i])
		}
	}
	text, err := t.newToken(spec)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tokens[args[0]] = text
	return nil
}

// approveWord: approve NODE.
func (t *teller) approveWord(args []string) error {
	_, s, err := t.controlPlane()
	if err != nil {
		return err
	}
	_, err = s.records.Approve(t.ctx, args[0])
	return err
}

// nodeName returns the name of the machine's node, according to its node lock.
func (m *machine) nodeName() string {
	if a := m.running(); a != nil {
		return a.lock.State().Node
	}
	return ""
}

// removeWord: remove n3 [refused]. The node leaves etcd, then its record is deleted. If the control plane that serves
// the request crashes, another one is asked.
func (t *teller) removeWord(args []string) error {
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	name := m.nodeName()
	if name == "" {
		return fmt.Errorf("%s is not a node", m.name)
	}
	err = errors.New("no other control plane responds")
	for range 20 {
		for _, other := range t.order {
			a := other.running()
			if other == m || a == nil || a.joins.Load() == nil {
				continue
			}
			err = t.take(a.joins.Load(), name)
			refused := err != nil && strings.Contains(err.Error(), "refused")
			switch {
			case len(args) > 1 && err == nil:
				return errors.New("got no error, want a refusal")
			case len(args) > 1 && refused, err == nil:
				return nil
			}
		}
		time.Sleep(3 * time.Second)
	}
	return err
}

func (t *teller) take(s *joinService, name string) error {
	ctx, cancel := context.WithTimeout(t.ctx, time.Minute)
	defer cancel()
	if err := s.members.Leave(ctx, name); err != nil {
		return err
	}
	return s.records.DeleteNode(ctx, name)
}

// resetWord: reset n3 [lost] [refused]. If the agent crashes, the next one is asked.
func (t *teller) resetWord(args []string) error {
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	refused := slices.Contains(args[1:], "refused")
	m.mu.Lock()
	cluster := m.committed
	m.resetting = !refused
	m.mu.Unlock()
	for range 20 {
		a := m.running()
		if a == nil {
			time.Sleep(time.Second)
			continue
		}
		if a.lock.State().Phase == lock.Free {
			break
		}
		err = a.enrol.Reset(t.ctx, cluster, slices.Contains(args[1:], "lost"))
		switch {
		case refused && err == nil:
			return errors.New("got no error, want a refusal")
		case refused:
			return nil
		case err != nil && a.alive() == nil && !strings.Contains(err.Error(), "ask cluster"): // which may have no quorum now
			return err
		}
		time.Sleep(time.Second)
	}
	if err := m.phase(lock.Free); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.committed, m.target, m.joining, m.resetting = "", nil, false, false
	return nil
}
