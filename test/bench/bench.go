// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/trace"
)

// Run has the figures of one boot. All times are in seconds; those of milestones count from the start of the command.
type Run struct {
	APIReady   float64 `json:"apiReady"`   // /readyz returns 200
	NodeReady  float64 `json:"nodeReady"`  // the Node's condition Ready
	Admitted   float64 `json:"admitted"`   // the first pod is accepted: its ServiceAccount exists
	PodRunning float64 `json:"podRunning"` // the first pod's phase is Running
	DNS        float64 `json:"dns"`        // a second pod has got an answer of the cluster DNS
	Up         float64 `json:"up"`         // the command has exited
	SecondUp   float64 `json:"secondUp"`   // duration
	Down       float64 `json:"down"`       // duration

	CPU      float64            `json:"cpu"` // all processes of the machine and slipway up, until DNS
	CPUBy    map[string]float64 `json:"cpuBy"`
	Imported float64            `json:"imported"` // CPU of importing the benchmark's own image; part of CPU
	Foreign  float64            `json:"foreign"`  // CPU seconds of other processes on the host meanwhile
	Path     []trace.Segment    `json:"path"`
}

// Report is everything that bench has measured.
type Report struct {
	Host Host  `json:"host"`
	Runs []Run `json:"runs"`
	Idle *Idle `json:"idle,omitempty"`

	Forms   []Form   `json:"forms,omitempty"`
	Apply   *Apply   `json:"apply,omitempty"`
	Several *Several `json:"several,omitempty"`

	Spec  float64 `json:"spec"` // seconds to plan a spec of 1 000 machines
	Size  int64   `json:"size"` // bytes of the executable
	Notes []string
}

type bench struct {
	options
	inventory inventory.Inventory

	place  location
	image  string // digest of the test image's archive
	runc   string
	report Report
}

// prepare finds everything that is needed. It returns an error if the cluster exists already.
func (b *bench) prepare(ctx context.Context) error {
	cluster, err := b.inventory.Dir.Load(clusterdir.Source{Name: b.cluster, File: b.spec})
	if err != nil {
		return err
	}
	b.cluster = cluster.Name
	known, err := b.inventory.Dir.Clusters()
	if err != nil {
		return err
	}
	if slices.Contains(known, b.cluster) {
		return fmt.Errorf("cluster %s exists already: choose another -name, or remove it with slipway down --name %s", b.cluster, b.cluster)
	}
	if len(known) > 0 {
		b.note("other clusters on this host: %v", known)
	}
	if b.place, err = locate(b.inventory.Dir.Root, cluster); err != nil {
		return err
	}
	store, err := b.inventory.Dir.Components().Open()
	if err != nil {
		return err
	}
	bundle, ok, err := artifact.Lookup(ctx, store, cluster.Release)
	if err != nil || !ok {
		return errors.Join(errors.New("components are not all in the store: run slipway bundle build"), err)
	}
	b.image = bundle.Images[testImage].Digest.Hex()
	b.runc = store.Path(bundle.Binaries["runc"].Digest)
	info, err := os.Stat(b.slipway)
	if err != nil {
		return fmt.Errorf("measure slipway: %w", err)
	}
	b.report.Size = info.Size()
	return nil
}

// all measures everything that the options ask for into the report. It removes the cluster even after an error.
func (b *bench) all(ctx context.Context) (err error) {
	defer func() {
		if b.keep {
			return
		}
		err = errors.Join(err, b.command(context.WithoutCancel(ctx), "down", "--name", b.cluster).err)
	}()
	if b.report.Host, err = b.host(ctx); err != nil {
		return err
	}
	if b.only == "" {
		if b.report.Spec, err = thousand(); err != nil {
			return err
		}
	}
	if err := b.measureRuns(ctx); err != nil {
		return err
	}
	if b.keep && b.runs > 0 {
		b.note("-keep: only boots of one machine are measured")
		return nil
	}
	for _, measure := range []func(context.Context) error{b.measureForms, b.measureApply, b.measureSeveral} {
		if err := measure(ctx); err != nil {
			return err
		}
	}
	return nil
}

// some reports whether any boot or round was measured.
func (r Report) some() bool {
	return len(r.Runs) > 0 || rounds(r.Forms) > 0 || r.Apply != nil && len(r.Apply.Cold) > 0 || r.Several != nil
}

// measureRuns boots one machine b.runs times and measures what the last cluster needs when idle.
func (b *bench) measureRuns(ctx context.Context) error {
	for i := range b.runs {
		if err := b.quiet(ctx, fmt.Sprintf("run %d", i+1)); err != nil {
			return err
		}
		last := i == b.runs-1
		var idle func(context.Context) error
		if last && b.idle > 0 {
			idle = func(ctx context.Context) (err error) {
				b.report.Idle, err = b.measureIdle(ctx)
				return err
			}
		}
		run, err := b.cycle(ctx, last && b.keep, idle)
		if err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
		b.report.Runs = append(b.report.Runs, run)
		b.say("run %d: API %.2f  node %.2f  pod accepted %.2f  running %.2f  DNS %.2f  up %.2f  again %.2f  down %.2f  CPU %.2f  others' CPU %.2f",
			i+1, run.APIReady, run.NodeReady, run.Admitted, run.PodRunning, run.DNS, run.Up, run.SecondUp, run.Down, run.CPU, run.Foreign)
	}
	return nil
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (b *bench) note(format string, args ...any) {
	b.report.Notes = append(b.report.Notes, fmt.Sprintf(format, args...))
	b.say("note: "+format, args...)
}

func (r Report) save(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// result is the result of a command.
type result struct {
	elapsed time.Duration
	cpu     float64 // seconds, of the command and its children
	output  string  // both streams
	err     error
}

// command runs slipway. It sends SIGINT when ctx is done.
func (b *bench) command(ctx context.Context, args ...string) result {
	return runLine(ctx, append([]string{b.inventory.Exe}, args...)...)
}

// runLine runs a command line in its own process group. A Ctrl-C in the terminal thus reaches only bench, which interrupts the measured
// command, but not the command that cleans up.
func runLine(ctx context.Context, line ...string) result {
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	begun := time.Now()
	err := cmd.Run()
	r := result{elapsed: time.Since(begun), output: output.String()}
	if cmd.ProcessState != nil {
		r.cpu = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	}
	if err != nil {
		r.err = fmt.Errorf("%s: %w\n%s", strings.Join(line, " "), err, r.output)
	}
	return r
}

// ownCPU returns the CPU time of this process in seconds.
func ownCPU() float64 { return rusage(unix.RUSAGE_SELF) }

// childrenCPU returns the CPU time of this process's children that have exited.
func childrenCPU() float64 { return rusage(unix.RUSAGE_CHILDREN) }

func rusage(who int) float64 {
	var u unix.Rusage
	_ = unix.Getrusage(who, &u) // fails only for an invalid address
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// cycleLimit is far longer than any boot takes.
const cycleLimit = 5 * time.Minute

// cycle boots a cluster, measures it, and removes it unless keep is set. It calls idle, if not nil, while the cluster has nothing to do.
// Form has more arguments of slipway up.
func (b *bench) cycle(ctx context.Context, keep bool, idle func(context.Context) error, form ...string) (Run, error) {
	ctx, cancel := context.WithTimeout(ctx, cycleLimit+2*b.idle)
	defer cancel()
	run, err := b.boot(ctx, form)
	if err != nil {
		return run, err
	}
	if run.Path, err = b.path(ctx); err != nil {
		return run, err
	}
	if idle != nil {
		if err := idle(ctx); err != nil {
			return run, err
		}
	}
	again := b.command(ctx, "up", "--name", b.cluster)
	if again.err != nil {
		return run, again.err
	}
	run.SecondUp = again.elapsed.Seconds()
	if keep {
		return run, nil
	}
	down := b.command(ctx, "down", "--name", b.cluster)
	run.Down = down.elapsed.Seconds()
	return run, down.err
}

// boot runs slipway up and everything that measures it at the same time.
func (b *bench) boot(ctx context.Context, form []string) (Run, error) {
	var up result
	before, err := busy()
	if err != nil {
		return Run{}, err
	}
	self := ownCPU()
	p := &prober{bench: b, begun: time.Now()}
	m := newMeter(b.place.cgroup)
	metering, stop := context.WithCancel(ctx)
	defer stop()
	go m.run(metering)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		args := append([]string{"up", "--name", b.cluster}, form...)
		if b.spec != "" {
			args = append(args, "-f", b.spec)
		}
		up = b.command(ctx, args...)
		return up.err
	})
	group.Go(func() error { return p.run(ctx) })
	if err := group.Wait(); err != nil {
		return Run{}, err
	}
	stop()
	run := p.seen
	run.Up = up.elapsed.Seconds()
	run.CPU, run.CPUBy = m.until(p.dnsAt)
	run.CPU += up.cpu
	run.CPUBy["slipway up"] = up.cpu
	after, err := busy()
	if err != nil {
		return Run{}, err
	}
	total, _ := m.until(time.Now())
	run.Foreign = max(0, (after-before)-total-up.cpu-(ownCPU()-self)-run.Imported)
	return run, nil
}

// path returns the critical path of the boot from the agent's trace.
func (b *bench) path(ctx context.Context) ([]trace.Segment, error) {
	agent, err := agentclient.Dial(agentclient.Socket(b.place.agentSocket()))
	if err != nil {
		return nil, err
	}
	defer agent.Close()
	spans, err := agent.Trace(ctx)
	if err != nil {
		return nil, err
	}
	if len(spans) == 0 {
		return nil, fmt.Errorf("read trace: no spans")
	}
	return trace.CriticalPath(spans, ""), nil
}

// location says where the machine of the cluster will be.
type location struct {
	node   string
	local  *machine.Local // for paths only
	name   string         // of the cluster
	cgroup cgroup
}

func locate(root string, c clusterdir.Cluster) (location, error) {
	var nodes []string
	for _, p := range c.Config.Pools {
		for _, n := range p.Nodes {
			nodes = append(nodes, n.Name)
		}
	}
	if len(nodes) != 1 {
		return location{}, fmt.Errorf("the spec has %d machines: bench needs one", len(nodes))
	}
	local, err := machine.New(machine.Config{Root: root})
	if err != nil {
		return location{}, err
	}
	group, err := findCgroup(filepath.Join("slipway", c.Name, nodes[0]))
	if err != nil {
		return location{}, err
	}
	return location{node: nodes[0], local: local, name: c.Name, cgroup: group}, nil
}

func (p location) agentSocket() string {
	return filepath.Join(p.local.RunDir(p.name, p.node), "agent.sock")
}

func (p location) apiSocket() string {
	return filepath.Join(p.local.RunDir(p.name, p.node), "api.sock")
}

// credential is the kubeconfig of a user that does not depend on RBAC roles, which the API server writes some time after its start.
func (p location) credential() string {
	return filepath.Join(p.local.DataDir(p.name, p.node, "etc-kubernetes"), "super-admin.conf")
}

// step is the interval of polls.
const step = 25 * time.Millisecond

// poll calls ask until it returns true.
func poll(ctx context.Context, every time.Duration, ask func() bool) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for !ask() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

const thousandSpec = `apiVersion: slipway.dev/v1alpha1
kind: Cluster
metadata: {name: thousand}
spec:
  networking: {podCIDR: 10.244.0.0/14}
  pools:
  - {name: main, roles: [control-plane, worker], count: 3}
  - {name: work, roles: [worker], count: 997}
`

// thousand returns the median of five times, in seconds, for completing and printing a spec of 1 000 machines and planning all of them on
// one core.
func thousand() (float64, error) {
	var times []float64
	for range 5 {
		begun := time.Now()
		if err := planThousand(); err != nil {
			return 0, fmt.Errorf("plan 1 000 machines: %w", err)
		}
		times = append(times, time.Since(begun).Seconds())
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

func planThousand() error {
	cluster, err := clusterdir.Complete("thousand.yaml", []byte(thousandSpec), "")
	if err != nil {
		return err
	}
	config.Print(cluster.Config)
	components := digests(cluster.Release)
	address := netip.MustParseAddr("10.89.0.10")
	for _, pool := range cluster.Config.Pools {
		for _, n := range pool.Nodes {
			node, err := config.ForNode(cluster.Config, n.Name, coremachine.Facts{Address: address, OOMScoreAdj: true, UpstreamDNS: true})
			if err != nil {
				return err
			}
			node.Pool = cluster.Config.Pools[0] // all roles on every machine make the longest plans
			if _, err := planner.For(node, components); err != nil {
				return err
			}
			address = address.Next()
		}
	}
	return nil
}

// digests returns fake digests of all components.
func digests(r catalog.Release) planner.Components {
	const digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	out := planner.Components{}
	for _, c := range r.Components {
		for _, b := range c.Binaries {
			out[b.Name] = digest
		}
	}
	for _, i := range r.Images() {
		out[i.Name] = digest
	}
	return out
}
