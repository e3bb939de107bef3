// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"strconv"
)

// inits N: so many requests have made a cluster, and all are answered.
func (t *teller) initsWon(args []string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	won := 0
	for id, o := range t.inits {
		if !o.over() {
			return fmt.Errorf("request %s goes on", id)
		}
		if o.err == nil {
			won++
		}
	}
	if strconv.Itoa(won) != args[0] {
		return fmt.Errorf("%d requests have made a cluster, want %s", won, args[0])
	}
	return nil
}

// has n2 FILE …
func (t *teller) has(args []string) error {
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	for _, f := range args[1:] {
		if !exists(m.disk() + f) {
			return fmt.Errorf("%s lacks %s", m.name, f)
		}
	}
	return nil
}

// lacks n2 FILE …
func (t *teller) lacks(args []string) error {
	for _, f := range args[1:] {
		if t.has([]string{args[0], f}) == nil {
			return fmt.Errorf("%s has %s", args[0], f)
		}
	}
	return nil
}

// fell n2: the crashes that were prepared for the machine have happened.
func (t *teller) fallen(args []string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.pending {
		select {
		case <-c.done:
		default:
			if slices.Contains(args, c.Machine) {
				return fmt.Errorf("%s has not come to %q", c.Machine, c.Name)
			}
		}
	}
	return nil
}
