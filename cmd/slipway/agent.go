// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/attest/key"
	"github.com/slipway-project/slipway/internal/attest/token"
	"github.com/slipway-project/slipway/internal/backend/files"
	"github.com/slipway-project/slipway/internal/backend/pods"
	"github.com/slipway-project/slipway/internal/backend/probe"
	"github.com/slipway-project/slipway/internal/backend/supervise"
	"github.com/slipway-project/slipway/internal/backend/systemd"
	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/ca"
	"github.com/slipway-project/slipway/internal/control/rollout"
	"github.com/slipway-project/slipway/internal/control/service"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/node"
	"github.com/slipway-project/slipway/internal/node/enrol"
	"github.com/slipway-project/slipway/internal/node/facts"
	"github.com/slipway-project/slipway/internal/node/fetch"
	"github.com/slipway-project/slipway/internal/node/host"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/proxy"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Where an agent keeps its files.
const (
	stateDir = "/var/lib/slipway"
	keepDir  = stateDir + "/state"
	storeDir = stateDir + "/store"
	runDir   = machine.RunDir
	apiLocal = "127.0.0.1:6443"
)

// agent runs a node's agent until ctx ends, as on SIGTERM, or until PID 1 announces that the machine goes down.
func agent(ctx context.Context, backend string, log *slog.Logger) error {
	down := make(chan os.Signal, 1)
	signal.Notify(down, machine.DownSignal)
	defer signal.Stop(down)
	m, err := buildMachine(backend, log)
	if err != nil {
		return err
	}
	defer func() { _ = m.host.Close() }() // units keep running, whatever it returns
	apiAddress := func() string { return m.agent.APIAddress(apiLocal) }
	initAddress := func() string { return fmt.Sprintf("127.0.0.1:%d", config.InitPort) }
	return live(ctx, down, func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return m.agent.Run(ctx, m.enrol) })
		group.Go(func() error { return m.enrol.Run(ctx) })
		group.Go(func() error { return factsFile(log).Keep(ctx) })
		group.Go(func() error { return m.host.Pods.Run(ctx) })
		if s, ok := m.host.Supervisor.(*systemd.Host); ok {
			group.Go(func() error { return s.KeepTargets(ctx, m.board) })
		}
		group.Go(func() error { return proxy.ServeUnix(ctx, filepath.Join(runDir, "api.sock"), apiAddress) })
		group.Go(func() error { return proxy.ServeUnix(ctx, filepath.Join(runDir, "init.sock"), initAddress) })
		if err := group.Wait(); !errors.Is(err, enrol.ErrReset) {
			return err
		}
		log.Info(enrol.ErrReset.Error())
		return nil
	}, goingDown, m.agent.Stop)
}

// stopLimit is less than the time that PID 1 gives an agent to stop.
const stopLimit = 25 * time.Second

// live works until ctx ends, and leaves the units running for the next agent; or until the machine goes down, and only then stops
// the units in order. PID 1 announces that with down, or is asked when ctx ends.
func live(ctx context.Context, down <-chan os.Signal, work func(ctx context.Context) error, asked func(ctx context.Context) bool, stop func(ctx context.Context) error) error {
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	announced, ended := make(chan struct{}), make(chan struct{})
	go func() {
		select {
		case <-down:
			close(announced)
			cancel()
		case <-ended:
		}
	}()
	err := work(working)
	close(ended)
	select {
	case <-announced:
	default:
		if ctx.Err() == nil || !asked(context.WithoutCancel(ctx)) {
			return err
		}
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	return errors.Join(err, stop(stopping))
}

// goingDown asks systemd, if that is PID 1, whether the machine goes down or only the agent is being restarted. Without an answer
// it says no: units that keep running do no harm.
func goingDown(ctx context.Context) bool {
	if _, err := os.Stat("/run/systemd/system"); err != nil { // sd_booted(3)
		return false
	}
	limited, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	state, _ := exec.CommandContext(limited, "systemctl", "is-system-running").Output() // its exit code is not 0 in this case
	return strings.TrimSpace(string(state)) == "stopping"
}

// thisMachine is a machine's agent and what it works with.
type thisMachine struct {
	agent *node.Agent
	enrol *enrol.Enrolment
	host  *host.Host
	board *reconcile.Board
}

// buildMachine builds the agent in the order in which its parts need each other. Nothing runs yet.
func buildMachine(backend string, log *slog.Logger) (m thisMachine, err error) {
	found, err := facts.Find()
	if err != nil {
		return m, fmt.Errorf("find facts: %w", err)
	}
	for _, dir := range []string{filepath.Join(stateDir, "plan"), filepath.Join(stateDir, "trace"), keepDir, filepath.Join(runDir, "units")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return m, err
		}
	}
	if err := factsFile(log).Write(); err != nil { // before a unit that reads it is started
		return m, err
	}
	journal, err := lock.Open(filepath.Join(keepDir, "lock"))
	if err != nil {
		return m, err
	}
	key, pin, err := enrol.MachineKey(filepath.Join(keepDir, "machine.key"), journal.State().Phase == lock.Committed)
	if err != nil {
		return m, err
	}
	hooks := newFailpoints()
	custody := &ca.Local{Now: hooks.Now}
	m.board = reconcile.NewBoard()
	if m.host, err = newHost(backend, custody, m.board, log); err != nil {
		return m, err
	}
	leases := rollout.New(log, time.Now)
	control := service.New(service.Config{
		Pin: pin, Lock: journal, Rollout: leases, StoreDir: storeDir, AuditLog: "/var/log/slipway/join-audit.log", Verifiers: verifiers, Hooks: hooks, Log: log,
	})
	m.agent, err = node.New(node.Config{
		Host: m.host, Facts: found, Key: pin, PlanFile: filepath.Join(stateDir, "plan", "plan.json"),
		TraceFile: filepath.Join(stateDir, "trace", "last.json"), Socket: filepath.Join(runDir, "agent.sock"), Version: version, Log: log, Board: m.board,
		Control:   control.RunRole,
		Rollout:   leases,
		Custody:   custody,
		AfterStep: hooks.afterStep(), Pass: hooks.pass(),
		Register: func(s *grpc.Server) { controlv1.RegisterControlServer(s, control.Admin()) },
	})
	if err != nil {
		return m, err
	}
	m.enrol, err = enrol.New(enrol.Config{
		Lock: journal, Agent: m.agent, Board: m.board, Facts: found, Key: key, Custody: custody, Prover: prover, Slipway: version, Log: log, Pass: hooks.pass(), Now: hooks.Now,
		Network: enrol.HostNetwork{InitPort: config.InitPort},
		Paths: enrol.Paths{
			Key: filepath.Join(keepDir, "machine.key"), Secret: filepath.Join(stateDir, "init-secret.json"), Request: filepath.Join(keepDir, "init-request"), Target: filepath.Join(keepDir, "join-target"),
			JoinCA: config.JoinCA + ".crt", Roster: config.RosterFile, Admin: config.AdminConf, Create: config.CreatePermit,
			Permit: config.EtcdPermit, Voter: config.EtcdVoter,
		},
	})
	if err != nil {
		return m, err
	}
	custody.Remote = m.enrol.Renew // certificates whose CA is on another machine are renewed through the cluster
	return m, nil
}

// factsFile is what units can read about their machine.
func factsFile(log *slog.Logger) facts.File {
	return facts.File{Env: config.FactsFile, Dir: config.FactsDirectory, Zone: "/etc/slipway/zone", Log: log}
}

func machineInit(ctx context.Context, args []string, log *slog.Logger, exe string) error {
	if len(args) == 1 && args[0] == "--systemd" {
		return machine.BecomeSystemd(log)
	}
	return machine.Init(ctx, machine.InitConfig{Agent: []string{exe, "agent"}, Log: log})
}

const logDir = "/var/log/slipway"

// newHost builds what runs the units and the pods of components on this machine.
func newHost(backend string, custody *ca.Local, board *reconcile.Board, log *slog.Logger) (*host.Host, error) {
	h := &host.Host{}
	prober := probe.New()
	prober.Task = thisHost(nil).Done
	h.Pods = pods.New(pods.Config{
		Probe: prober, Log: log, OnEvent: func(e pods.Event) { host.ReportPod(board, e) }, RestartKubelet: h.RestartKubelet,
	})
	stores := fetch.Roster{Path: config.RosterFile, JoinCA: config.JoinCA + ".crt", Port: config.StorePort}
	onDisk, err := files.New(files.Config{
		Store: storeDir, Verified: filepath.Join(runDir, "verified"), Keys: custody, Probe: prober, Pods: h.Pods,
		Fetch: fetch.New(fetch.Config{Store: storeDir, Places: stores.Places, TLS: stores.TLS, Log: log}).Fetch,
	})
	if err != nil {
		return nil, err
	}
	h.Supervisor, err = newSupervisor(backend, onDisk, prober, log, func(e units.Event) { host.ReportUnit(board, e) })
	return h, err
}

// newSupervisor builds what runs units; backend is auto, supervise or systemd.
func newSupervisor(backend string, onDisk *files.Host, prober *probe.Prober, log *slog.Logger, onEvent func(units.Event)) (host.Supervisor, error) {
	supervised := filepath.Join(runDir, "units")
	if backend == "auto" {
		backend = choose(supervised, "/run/systemd/private")
		log.Info("chose what runs the units", "backend", backend)
	}
	switch backend {
	case "supervise":
		return supervise.New(supervise.Config{
			StateDir: supervised, LogDir: logDir, Limits: planner.UnitLimits, Files: onDisk, Probe: prober, Log: log, OnEvent: onEvent,
		})
	case "systemd":
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		return systemd.New(systemd.Config{
			StateDir: filepath.Join(runDir, "systemd"), LogDir: logDir, Exe: exe, Files: onDisk, Probe: prober, Log: log, OnEvent: onEvent,
		})
	}
	return nil, fmt.Errorf("unknown backend %q: use auto, supervise or systemd", backend)
}

// choose returns systemd if that is PID 1. Units that an earlier agent of the same boot runs itself stay with Slipway's own
// supervisor: two supervisors would run two copies.
func choose(supervised, socket string) string {
	if _, err := os.Stat(socket); err != nil {
		return "supervise"
	}
	if records, _ := filepath.Glob(filepath.Join(supervised, "*.state")); len(records) > 0 {
		return "supervise"
	}
	return "systemd"
}

// backendFlag reads the arguments of slipway agent.
func backendFlag(args []string) (string, error) {
	flags := flag.NewFlagSet("agent", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	backend := flags.String("backend", "auto", "what runs the units: auto, supervise or systemd")
	if err := flags.Parse(args); err != nil {
		return "", fmt.Errorf("agent: %w", err)
	}
	if flags.NArg() > 0 {
		return "", fmt.Errorf("agent: unknown argument %q", flags.Arg(0))
	}
	return *backend, nil
}

// attestation is one kind of attestation: both halves of its package.
type attestation struct {
	kind     string
	verifier func(token.Records) attest.Verifier
	// prover returns nil when the machine was given nothing for this kind.
	prover func(node.JoinTarget) attest.Prover
}

// attestations lists the kinds of attestation. A machine uses the first one that it was given something for.
var attestations = [...]attestation{
	{
		"token",
		func(r token.Records) attest.Verifier { return token.Verifier{Records: r} },
		func(t node.JoinTarget) attest.Prover {
			if t.Token == "" {
				return nil
			}
			return token.Prover{Text: t.Token}
		},
	},
	{
		attest.Key,
		func(token.Records) attest.Verifier { return key.Verifier{} },
		func(node.JoinTarget) attest.Prover { return key.Prover{} },
	},
}

func verifiers(r token.Records) map[string]attest.Verifier {
	out := map[string]attest.Verifier{}
	for _, a := range attestations {
		out[a.kind] = a.verifier(r)
	}
	return out
}

func prover(t node.JoinTarget) attest.Prover {
	for _, a := range attestations {
		if p := a.prover(t); p != nil {
			return p
		}
	}
	return key.Prover{}
}
