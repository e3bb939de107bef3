// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/node/lock"
)

// removeWord: remove n3 [refused]. It leaves etcd first, and then its record goes. A control plane that dies over it is no answer.
func (t *teller) removeWord(args []string) error {
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	name := m.nodeName()
	if name == "" {
		return fmt.Errorf("%s is no node", m.name)
	}
	err = errors.New("there is no other control plane")
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
				return errors.New("it was not refused")
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

// resetWord: reset n3 [lost] [refused]. An agent that dies over it is asked again.
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
			return errors.New("it was not refused")
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
