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

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/launch"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/trace"
)

// Run is what one boot gave. All times are seconds, milestones since the start of the command.
type Run struct {
	APIReady   float64 `json:"apiReady"`   // /readyz says ok
	NodeReady  float64 `json:"nodeReady"`  // the Node's condition
	Admitted   float64 `json:"admitted"`   // the first pod was accepted: its ServiceAccount is there
	PodRunning float64 `json:"podRunning"` // the first pod's phase
	DNS        float64 `json:"dns"`        // a second pod has an answer from the cluster DNS
	Up         float64 `json:"up"`         // the command has ended
	SecondUp   float64 `json:"secondUp"`   // duration
	Down       float64 `json:"down"`       // duration

	CPU      float64            `json:"cpu"` // all processes of the machine and slipway up, until DNS
	CPUBy    map[string]float64 `json:"cpuBy"`
	Imported float64            `json:"imported"` // CPU of importing the benchmark's own image; in CPU too
	Foreign  float64            `json:"foreign"`  // CPU seconds that others took meanwhile
	Path     []trace.Segment    `json:"path"`
}

// Report is everything that one call of bench has measured.
type Report struct {
	Host Host  `json:"host"`
	Runs []Run `json:"runs"`
	Idle *Idle `json:"idle,omitempty"`

	Forms   []Form   `json:"forms,omitempty"`
	Apply   *Apply   `json:"apply,omitempty"`
	Several *Several `json:"several,omitempty"`

	Spec  float64 `json:"spec"` // seconds for a spec of 1 000 machines
	Size  int64   `json:"size"` // bytes of the executable
	Notes []string
}

type bench struct {
	options
	launcher *launch.Launcher

	place  place
	image  string // digest of the test image's archive
	runc   string
	report Report
}

// prepare finds everything that is needed and refuses to touch a cluster that it has not made.
func (b *bench) prepare(ctx context.Context) error {
	cluster, err := b.launcher.Load(launch.Source{Name: b.cluster, File: b.spec})
	if err != nil {
		return err
	}
	b.cluster = cluster.Name
	known, err := b.launcher.Clusters()
	if err != nil {
		return err
	}
	if slices.Contains(known, b.cluster) {
		return fmt.Errorf("cluster %s exists already: choose another -name, or remove it with slipway down --name %s", b.cluster, b.cluster)
	}
	if len(known) > 0 {
		b.note("clusters %v exist on this host too", known)
	}
	if b.place, err = placeOf(b.launcher, cluster); err != nil {
		return err
	}
	store, err := b.launcher.Store()
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

// all measures everything that is wanted, into the report. Whatever happens, no cluster stays.
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
		b.note("what comes after the boots of one machine is left out, for the last cluster is kept")
		return nil
	}
	for _, measure := range []func(context.Context) error{b.measureForms, b.measureApply, b.measureSeveral} {
		if err := measure(ctx); err != nil {
			return err
		}
	}
	return nil
}

// some reports whether anything was measured that is worth showing.
func (r Report) some() bool {
	return len(r.Runs) > 0 || rounds(r.Forms) > 0 || r.Apply != nil && len(r.Apply.Cold) > 0 || r.Several != nil
}

// measureRuns boots one machine as often as wanted. The last cluster is kept for a while to see what it needs when idle.
func (b *bench) measureRuns(ctx context.Context) error {
	for i := range b.runs {
		if err := b.quiet(ctx, fmt.Sprintf("run %d", i+1)); err != nil {
			return err
		}
		last := i == b.runs-1
		var idle func(context.Context) error
		if last && b.idle > 0 {
			idle = func(ctx context.Context) (err error) {
				b.report.Idle, err = b.rest(ctx)
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

// result is how a command ended.
type result struct {
	elapsed time.Duration
	cpu     float64 // seconds, of the command and the children that it waited for
	output  string  // both streams
	err     error
}

// command runs slipway to its end, or interrupts it as Ctrl-C does when ctx is done.
func (b *bench) command(ctx context.Context, args ...string) result {
	return runLine(ctx, append([]string{b.launcher.Exe}, args...)...)
}

// runLine runs a command line. It is a process group of its own: the terminal's Ctrl-C reaches bench alone, which interrupts what
// measures, once, and never what cleans up.
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

// ownCPU is what this process has taken so far, in seconds.
func ownCPU() float64 { return rusage(unix.RUSAGE_SELF) }

// childrenCPU is what children of this process have taken that have ended.
func childrenCPU() float64 { return rusage(unix.RUSAGE_CHILDREN) }

func rusage(who int) float64 {
	var u unix.Rusage
	_ = unix.Getrusage(who, &u) // fails for a bad address only
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// cycleLimit is far beyond any boot: what takes longer hangs.
const cycleLimit = 5 * time.Minute

// cycle boots a cluster, measures, and destroys it unless it is to be kept. Idle, if there is one, is called while the cluster has nothing
// to do. Form are more arguments of slipway up.
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

// boot runs slipway up, and everything that watches it, side by side.
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

// path is the critical path of the boot, from the agent's trace.
func (b *bench) path(ctx context.Context) ([]trace.Segment, error) {
	agent, err := launch.DialAgent(ctx, b.place.agentSocket())
	if err != nil {
		return nil, err
	}
	defer agent.Close()
	spans, err := agent.Trace(ctx)
	if err != nil {
		return nil, err
	}
	if len(spans) == 0 {
		return nil, fmt.Errorf("read trace: it is empty")
	}
	return trace.CriticalPath(spans, ""), nil
}

// place is where the one machine of the cluster can be found, before it exists.
type place struct {
	node   string
	local  *machine.Local // for paths only
	name   string         // of the cluster
	cgroup cgroup
}

func placeOf(l *launch.Launcher, c launch.Cluster) (place, error) {
	var nodes []string
	for _, p := range c.Config.Pools {
		for _, n := range p.Nodes {
			nodes = append(nodes, n.Name)
		}
	}
	if len(nodes) != 1 {
		return place{}, fmt.Errorf("the spec has %d machines: bench measures one", len(nodes))
	}
	local, err := l.Machines("")
	if err != nil {
		return place{}, err
	}
	group, err := findCgroup(filepath.Join("slipway", c.Name, nodes[0]))
	if err != nil {
		return place{}, err
	}
	return place{node: nodes[0], local: local, name: c.Name, cgroup: group}, nil
}

func (p place) agentSocket() string {
	return filepath.Join(p.local.RunDir(p.name, p.node), "agent.sock")
}

func (p place) apiSocket() string { return filepath.Join(p.local.RunDir(p.name, p.node), "api.sock") }

// credential is allowed everything from the first moment, before RBAC knows anybody.
func (p place) credential() string {
	return filepath.Join(p.local.DataDir(p.name, p.node, "etc-kubernetes"), "super-admin.conf")
}

// step is how often everything is asked that cannot be watched.
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

// thousand completes and prints a spec of 1 000 machines and plans every one of them: the median of five times, in seconds,
// on one core.
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
	cluster, err := launch.Complete("thousand.yaml", []byte(thousandSpec), "")
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
			node.Pool = cluster.Config.Pools[0] // all roles on every machine: the most that a plan can hold
			if _, err := planner.For(node, components); err != nil {
				return err
			}
			address = address.Next()
		}
	}
	return nil
}

// digests are made up: plans differ in nothing but their text.
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
