// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/slipway-project/slipway/internal/durable"
)

// cuts is what is wrong with a cluster's network on purpose.
type cuts struct {
	Machines []string    `json:"machines,omitempty"` // no cable, sorted
	Between  [][2]string `json:"between,omitempty"`  // pairs that do not reach each other
}

const cutsSchema = 1

// Cut pulls the machine's network cable: its port on the switch goes down, and stays down over stops and starts until [Local.Heal].
// The sockets in [Local.RunDir] keep working, like a console. The host's network is not touched.
func (l *Local) Cut(ctx context.Context, cluster, name string) error {
	return l.rewire(ctx, cluster, func(c *cuts) {
		if !slices.Contains(c.Machines, name) {
			c.Machines = append(c.Machines, name)
			slices.Sort(c.Machines)
		}
	}, name)
}

// CutBetween lets two machines not reach each other, while both reach all others. [Local.Heal] of either ends it.
func (l *Local) CutBetween(ctx context.Context, cluster, a, b string) error {
	if a == b {
		return fmt.Errorf("cut machine %s from itself: name two machines", a)
	}
	pair := [2]string{min(a, b), max(a, b)}
	return l.rewire(ctx, cluster, func(c *cuts) {
		if !slices.Contains(c.Between, pair) {
			c.Between = append(c.Between, pair)
		}
	}, a, b)
}

// Heal undoes every cut of the machine, also a cut that something else than [Local.Cut] has made on the switch.
func (l *Local) Heal(ctx context.Context, cluster, name string) error {
	return l.rewire(ctx, cluster, func(c *cuts) {
		c.Machines = slices.DeleteFunc(c.Machines, func(m string) bool { return m == name })
		c.Between = slices.DeleteFunc(c.Between, func(p [2]string) bool { return p[0] == name || p[1] == name })
	}, name)
}

// rewire writes down what is to be cut and then does it, so that a start after a crash in between does the rest. Machines that
// do not run are wired when they start.
func (l *Local) rewire(ctx context.Context, cluster string, change func(*cuts), names ...string) error {
	for _, name := range names {
		if _, err := l.find(cluster, name); err != nil {
			return err
		}
	}
	unlock, err := durable.HoldFolder(l.clusterDir(cluster))
	if err != nil {
		return fmt.Errorf("lock switch of %s: %w", cluster, err)
	}
	defer unlock()
	c, err := l.readCuts(cluster)
	if err != nil {
		return err
	}
	change(&c)
	if err := durable.Save(l.cutsFile(cluster), cutsSchema, c); err != nil {
		return fmt.Errorf("note what is cut: %w", err)
	}
	all, err := l.machineNames(cluster) // the other end of a pair, too
	if err != nil {
		return err
	}
	for _, name := range all {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r, err := l.readRecord(cluster, name)
		if err != nil {
			return err
		}
		if r.Spec.Name == "" || !isPin(l.switchPin(cluster)) || !isPin(l.folders(cluster, name).netns()) {
			continue
		}
		if err := l.wire(r.Spec, c); err != nil {
			return err
		}
	}
	return nil
}

func (l *Local) cutsFile(cluster string) string {
	return filepath.Join(l.clusterDir(cluster), ".cuts.json")
}

func (l *Local) readCuts(cluster string) (cuts, error) {
	var c cuts
	err := durable.Load(l.cutsFile(cluster), cutsSchema, &c)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("read what is cut in %s: %w; remove that file and its .prev and try again: then nothing is cut", cluster, err)
	}
	return c, nil
}

func (c cuts) of(machine string) bool { return slices.Contains(c.Machines, machine) }

// from names the machines that this one does not reach.
func (c cuts) from(machine string) []string {
	var out []string
	for _, p := range c.Between {
		switch machine {
		case p[0]:
			out = append(out, p[1])
		case p[1]:
			out = append(out, p[0])
		}
	}
	slices.Sort(out)
	return out
}

// forgetCuts: what comes under the machine's name later is another one.
func (l *Local) forgetCuts(cluster, machine string) error {
	unlock, err := durable.HoldFolder(l.clusterDir(cluster))
	if err != nil {
		return fmt.Errorf("lock switch of %s: %w", cluster, err)
	}
	defer unlock()
	c, err := l.readCuts(cluster)
	if err != nil || !c.of(machine) && len(c.from(machine)) == 0 {
		return err
	}
	c.Machines = slices.DeleteFunc(c.Machines, func(name string) bool { return name == machine })
	c.Between = slices.DeleteFunc(c.Between, func(p [2]string) bool { return p[0] == machine || p[1] == machine })
	return durable.Save(l.cutsFile(cluster), cutsSchema, c)
}
