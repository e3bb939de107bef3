// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// UpOptions are the choices of one up.
type UpOptions struct {
	Source    Source
	NoInstall bool             // report missing packages, install nothing
	Init      machine.InitKind // optional: what new machines boot with; see [machine.InitKind]
	Wait      time.Duration    // how long to wait for the cluster once its first machine runs; 0 means do not wait
	Report    func(Event)      // called from several goroutines
}

// Result is what up ends with.
type Result struct {
	Cluster    string             `json:"cluster"`
	Release    string             `json:"release"`
	Changed    bool               `json:"changed"`
	Steps      int                `json:"steps"` // carried out on the machines
	Kubeconfig string             `json:"kubeconfig"`
	Server     string             `json:"server"`
	Elapsed    time.Duration      `json:"elapsed"` // of the whole command
	Built      time.Duration      `json:"built"`   // how long missing components took to build; 0 if there were none
	Milestones []Milestone        `json:"milestones"`
	Unready    []reconcile.Status `json:"unready,omitempty"`
}

// Milestone is a moment that users care about.
type Milestone struct {
	Name string        `json:"name"`
	At   time.Duration `json:"at"` // since the store had all components
}

// Up creates a cluster or brings it to its spec. It may be interrupted at any moment and run again: it continues.
func (l *Launcher) Up(ctx context.Context, o UpOptions) (Result, error) {
	u := &up{Launcher: l, o: o, begun: time.Now()}
	u.result.Milestones = []Milestone{}
	cluster, err := l.Load(o.Source)
	if err != nil {
		return u.result, err
	}
	u.cluster, u.result.Cluster, u.result.Release = cluster, cluster.Name, cluster.Release.Kubernetes
	u.report(Event{Stage: StageSpec, Text: "Kubernetes " + cluster.Release.Kubernetes})
	for _, text := range cluster.unplaced() {
		u.report(Event{Stage: StageSpec, Text: text})
	}
	if err := u.refuse(); err != nil {
		return u.result, err
	}
	return u.result, u.run(ctx)
}

// up is one run of Up.
type up struct {
	*Launcher
	o         UpOptions
	begun     time.Time
	building  time.Time // when the build of missing components started; zero without one
	storeFull time.Time // when the store had all components; zero before
	cluster   Cluster
	result    Result

	components planner.Components
	founding   founding
	machines   []machine.Status  // as they were before
	gone       []string          // machines of the kept spec that this one does not have
	phases     map[string]string // of machines that were asked already; nil for local ones, which may not run yet

	mu       sync.Mutex // guards result while several machines are worked on
	booting  sync.Mutex // one machine at a time is started again
	unlock   func()     // nil while the lock is not held
	kept     bool       // the spec is kept: from then on somebody else may keep another one
	deadline time.Time  // of o.Wait, which counts from when the first machine runs; zero before, and without one
}

func (u *up) report(e Event) {
	if u.o.Report != nil {
		e.Elapsed = time.Since(u.begun)
		u.o.Report(e)
	}
}

// refuse says early what this version does not do on local machines.
func (u *up) refuse() error {
	if far, err := u.Applied(u.cluster.Name); err != nil || far {
		return errors.Join(err, fmt.Errorf("cluster %s consists of machines that slipway has not made: slipway apply brings it to its spec", u.cluster.Name))
	}
	for path, r := range map[string]netip.Prefix{
		"spec.networking.podCIDR": u.cluster.Config.PodCIDR, "spec.networking.serviceCIDR": u.cluster.Config.ServiceCIDR,
	} {
		if r.Overlaps(machine.DefaultSubnet()) {
			return &Error{InvalidSpec, fmt.Errorf("%s: %s overlaps %s, the network of local machines: choose another range", path, r, machine.DefaultSubnet())}
		}
	}
	return nil
}

func (u *up) run(ctx context.Context) error {
	if err := u.preflight(ctx); err != nil {
		return err
	}
	bundle, store, err := u.Bundle(ctx, u.cluster.Release, u.bundleEvent)
	if err != nil {
		return err
	}
	u.stored()
	runc := bundle.Binaries["runc"].Digest
	if err := store.Verify(ctx, runc); err != nil { // the machines' agents verify the rest as they take it
		return fmt.Errorf("verify runc: %w", err)
	}
	machines, err := u.local(u.cluster.Name, store.Path(runc))
	if err != nil {
		return err
	}
	u.components = digests(bundle)
	if err := u.hold(ctx); err != nil {
		return err
	}
	defer u.letGo()
	if err := u.settle(ctx, machines); err != nil {
		return err
	}
	if machines.init, err = settleInit(u.cluster.Name, u.machines, u.o.Init); err != nil {
		return err
	}
	if err := u.immutable(); err != nil {
		return err
	}
	if err := u.together(ctx, machines); err != nil {
		return u.late(ctx, err)
	}
	u.result.Elapsed = time.Since(u.begun)
	u.report(Event{Stage: StageDone})
	return nil
}
