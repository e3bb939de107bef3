// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/control/lease"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/rollout"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/sleep"
)

// changeWord: change etcd FLAG: the operator gives every control plane a plan whose etcd has that flag, and retries until
// it is stored.
func (t *teller) changeWord(args []string) error {
	if len(args) != 2 {
		return errors.New("change UNIT FLAG")
	}
	t.mu.Lock()
	t.flags = maps.Clone(t.flags)
	if t.flags == nil {
		t.flags = map[string]string{}
	}
	t.flags[args[0]] = args[1]
	t.revision++
	if t.changedAt == 0 {
		t.changedAt = len(t.steps)
	}
	mine, flags := t.revision, t.flags
	t.handing += len(t.order)
	t.mu.Unlock()
	for _, m := range t.order {
		before, over := m.handed, make(chan struct{})
		m.handed = over
		t.work.Go(func() {
			defer close(over)
			if before != nil { // an operator sends one plan after the other
				<-before
			}
			if err := t.hand(m, mine, flags); err != nil && t.ctx.Err() == nil {
				t.wrong("change %s: %v", m.name, err)
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			t.handing--
		})
	}
	return nil
}

// hand gives one machine its plan, unless it is not a control plane or a newer change has come. If the agent crashes, the
// next one is asked.
func (t *teller) hand(m *machine, revision int, flags map[string]string) error {
	for ; t.ctx.Err() == nil; _ = sleep.For(t.ctx, time.Second) {
		t.mu.Lock()
		over := t.revision != revision
		t.mu.Unlock()
		a := m.running()
		if over {
			return nil
		}
		if a == nil {
			continue
		}
		s := a.lock.State()
		if s.Phase != lock.Committed || !strings.Contains(s.Node, "-"+poolMain+"-") {
			return nil
		}
		doc, err := t.document(s.Node, flags)
		if err != nil {
			return err
		}
		control, err := json.Marshal(doc)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(t.ctx)
		stop := context.AfterFunc(a.ctx, cancel)
		_, err = a.node.Apply(ctx, planOf(s.Node, poolMain, flags), control)
		stop()
		cancel()
		if err == nil && a.alive() == nil {
			return nil
		}
	}
	return nil
}

// document returns the operator's document for a control plane.
func (w *World) document(self string, flags map[string]string) (document, error) {
	doc := document{Self: self, ControlPlanes: w.planes, Flags: flags}
	for i, n := range w.prepared {
		pin, err := w.machines[n.machine].pin()
		if err != nil {
			return doc, err
		}
		share, _ := admission.PodCIDR(policy().PodCIDR, policy().NodePodPrefix, i)
		doc.Nodes = append(doc.Nodes, admission.Node{Name: n.name, Pool: n.pool, Index: i, PodCIDR: share, Key: pin, Address: w.machines[n.machine].address})
	}
	return doc, nil
}

// runs UNIT FLAG N: on this number of machines the unit runs with the flag.
func (t *teller) running(args []string) error {
	if len(args) != 3 {
		return errors.New("runs UNIT FLAG N")
	}
	n, who := 0, ""
	for _, m := range t.order {
		m.mu.Lock()
		has := m.wanted[args[0]].Args
		m.mu.Unlock()
		who += fmt.Sprintf(" %s %v", m.name, has)
		if slices.Contains(has, args[1]) {
			n++
		}
	}
	if strconv.Itoa(n) != args[2] {
		return fmt.Errorf("got %d machines that run %s with %s, want %s:%s", n, args[0], args[1], args[2], who)
	}
	return nil
}

// lease free, or lease UNIT FLAG: the holder of the rollout lease runs the unit with this flag.
func (t *teller) turn(args []string) error {
	c, err := t.only()
	if err != nil {
		return err
	}
	var now struct {
		Holder *struct {
			Node, Item     string
			Items          []string
			Since, Renewed time.Time
		}
	}
	_, err = registry.New(c.store, time.Now).Load(t.ctx, lease.Kind, rollout.Name, &now)
	switch {
	case err != nil:
		return err
	case now.Holder == nil && args[0] == "free":
		return nil
	case now.Holder == nil || args[0] == "free":
		return fmt.Errorf("got rollout lease of %v, want %v", now.Holder, args)
	}
	for _, m := range t.order {
		m.mu.Lock()
		has := m.wanted[args[0]].Args
		m.mu.Unlock()
		if m.nodeName() == now.Holder.Node && slices.Contains(has, args[1]) {
			return nil
		}
	}
	return fmt.Errorf("%s holds the rollout lease for %s and does not run %v", now.Holder.Node, now.Holder.Item, args)
}

// mislayWord: lose-answer n1 at "put rollout lease done": the write happens, and its answer is lost.
func (t *teller) mislayWord(args []string) error {
	return t.fall(args, Crash{Mislay: true}, nil)
}

// planes counts the machines that are to be control planes.
func (s Story) planes() int {
	seen := map[string]bool{}
	for _, l := range s.lines {
		if l.words[0] == "init" || l.words[0] == "join" && len(l.words) > 2 && pool(l.words[2]) == poolMain {
			seen[l.words[1]] = true
		}
	}
	return len(seen)
}
