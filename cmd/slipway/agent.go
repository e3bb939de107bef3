// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	"github.com/slipway-project/slipway/internal/backend/pods"
	"github.com/slipway-project/slipway/internal/ca"
	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/rollout"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/kube"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/node"
	"github.com/slipway-project/slipway/internal/node/enrol"
	"github.com/slipway-project/slipway/internal/node/facts"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/proxy"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Where an agent keeps its things.
const (
	stateDir = "/var/lib/slipway"
	keepDir  = stateDir + "/state"
	runDir   = machine.RunDir
	apiLocal = "127.0.0.1:6443"
)

// agent runs a node's agent until ctx ends, as on SIGTERM, or until PID 1 says that the machine goes down.
func agent(ctx context.Context, backend string, log *slog.Logger) error {
	down := make(chan os.Signal, 1)
	signal.Notify(down, machine.DownSignal)
	defer signal.Stop(down)
	b, err := buildAgent(backend, log)
	if err != nil {
		return err
	}
	defer func() { _ = b.host.Close() }() // the units go on, whatever it says
	apiAddress := func() string { return b.agent.APIAddress(apiLocal) }
	initAddress := func() string { return fmt.Sprintf("127.0.0.1:%d", config.InitPort) }
	return live(ctx, down, func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		// Most of the heap is garbage once the start is over.
		trim := time.AfterFunc(30*time.Second, func() { debug.SetGCPercent(50); debug.FreeOSMemory() })
		defer trim.Stop()
		group.Go(func() error { return b.agent.Run(ctx) })
		group.Go(func() error { return b.enrol.Run(ctx) })
		group.Go(func() error { return factsFile(log).Keep(ctx) })
		group.Go(func() error { return b.pods.Run(ctx) })
		if h, ok := b.host.(handles); ok {
			group.Go(func() error { return keepHandles(ctx, b.board, h, log) })
		}
		group.Go(func() error { return proxy.ServeUnix(ctx, filepath.Join(runDir, "api.sock"), apiAddress) })
		group.Go(func() error { return proxy.ServeUnix(ctx, filepath.Join(runDir, "init.sock"), initAddress) })
		if err := group.Wait(); !errors.Is(err, enrol.ErrAnew) {
			return err
		}
		log.Info(enrol.ErrAnew.Error())
		return nil
	}, goingDown, b.agent.Stop)
}

// stopLimit is below the time that PID 1 leaves an agent.
const stopLimit = 25 * time.Second

// live works until ctx ends, and leaves the units running for the next agent; or until the machine goes down, and only then
// takes them down in order. PID 1 says so by down, or is asked when ctx ends.
func live(ctx context.Context, down <-chan os.Signal, work func(ctx context.Context) error, asked func(ctx context.Context) bool, stop func(ctx context.Context) error) error {
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	told, ended := make(chan struct{}), make(chan struct{})
	go func() {
		select {
		case <-down:
			close(told)
			cancel()
		case <-ended:
		}
	}()
	err := work(working)
	close(ended)
	select {
	case <-told:
	default:
		if ctx.Err() == nil || !asked(context.WithoutCancel(ctx)) {
			return err
		}
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	return errors.Join(err, stop(stopping))
}

// goingDown asks systemd, where that is PID 1, why it ends the agent: the machine goes down, or somebody restarts the agent. No
// answer is no: units that run on do no harm.
func goingDown(ctx context.Context) bool {
	if _, err := os.Stat("/run/systemd/system"); err != nil { // sd_booted(3)
		return false
	}
	limited, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	state, _ := exec.CommandContext(limited, "systemctl", "is-system-running").Output() // its exit code is not 0 in this case
	return strings.TrimSpace(string(state)) == "stopping"
}

// built is a machine's agent and all that it is made of.
type built struct {
	agent  *node.Agent
	host   supervisor
	pods   *pods.Manager
	enrol  *enrol.Enrolment
	joinIn *joining
	board  *reconcile.Board
}

func buildAgent(backend string, log *slog.Logger) (b built, err error) {
	found, err := facts.Find()
	if err != nil {
		return b, fmt.Errorf("find facts: %w", err)
	}
	for _, dir := range []string{filepath.Join(stateDir, "plan"), filepath.Join(stateDir, "trace"), keepDir, filepath.Join(runDir, "units")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return b, err
		}
	}
	if err := factsFile(log).Write(); err != nil { // before a unit is started that reads it
		return b, err
	}
	journal, err := lock.Open(filepath.Join(keepDir, "lock"))
	if err != nil {
		return b, err
	}
	key, pin, err := machineKey(filepath.Join(keepDir, "machine.key"), journal.State().Phase == lock.Committed)
	if err != nil {
		return b, err
	}
	crash := newFailpoints()
	custody := &ca.Local{Now: crash.now, Remote: func(ctx context.Context, w pki.Want, request []byte) ([]byte, error) {
		return b.enrol.Renew(ctx, w, request)
	}}
	board := reconcile.NewBoard()
	b.board = board
	if err = newHost(&b, backend, custody, board, log); err != nil {
		return b, err
	}
	leases := rollout.New(log, time.Now)
	b.joinIn = &joining{pin: pin, rollout: leases, crash: crash, lock: journal, log: log, audit: &audit{path: "/var/log/slipway/join-audit.log", log: log}}
	b.agent, err = node.New(node.Config{
		Host: unitHost{b.host, b.pods}, Facts: found, Key: pin, PlanFile: filepath.Join(stateDir, "plan", "plan.json"),
		TraceFile: filepath.Join(stateDir, "trace", "last.json"), Socket: filepath.Join(runDir, "agent.sock"), Version: version, Log: log, Board: board,
		Control:   controlRole(b.joinIn, log),
		Rollout:   leases,
		Custody:   custody,
		AfterStep: crash.afterStep(), Pass: crash.pass(),
		Enrolment: func() node.Enrolment { return b.enrol },
		Hold:      func(ctx context.Context) { b.enrol.Hold(ctx) },
		Announce:  func() { b.enrol.Announce() },
		Register:  func(s *grpc.Server) { controlv1.RegisterControlServer(s, lateAdmin{now: &b.joinIn.admin}) },
	})
	if err != nil {
		return b, err
	}
	b.enrol, err = enrol.New(enrol.Config{
		Lock: journal, Agent: b.agent, Board: board, Facts: found, Key: key, Custody: custody, Slipway: version, Log: log, Pass: crash.pass(), Now: crash.now,
		Listen: func(ctx context.Context) (net.Listener, error) {
			return (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", config.InitPort))
		},
		Paths: enrol.Paths{
			Key: filepath.Join(keepDir, "machine.key"), Secret: filepath.Join(stateDir, "init-secret.json"), Request: filepath.Join(keepDir, "init-request"), Target: filepath.Join(keepDir, "join-target"),
			JoinCA: config.JoinCA + ".crt", Roster: config.RosterFile, Admin: config.AdminConf, Create: config.CreatePermit,
			Permit: config.EtcdPermit, Voter: config.EtcdVoter,
		},
	})
	return b, err
}

// factsFile is what units may read about their machine.
func factsFile(log *slog.Logger) facts.File {
	return facts.File{Env: config.FactsFile, Folder: config.FactsDirectory, Zone: "/etc/slipway/zone", Log: log}
}

// controlRole runs the control role, and beside it the join service.
func controlRole(j *joining, log *slog.Logger) func(ctx context.Context, doc []byte, board *reconcile.Board) error {
	return func(ctx context.Context, doc []byte, board *reconcile.Board) error {
		return control.Role{
			Connect: func(kubeconfig string) (control.Cluster, error) { return control.Connect(kubeconfig, log) },
			Records: func(kubeconfig string) (control.Records, error) {
				client, err := kube.Connect(kubeconfig, log)
				if err != nil {
					return nil, err
				}
				return registry.New(client.Records(), j.crash.now), nil
			},
			Beside:  []control.Service{{Name: "join", Run: j.run}},
			Resolve: control.ResolveUDP, Board: board, Log: log,
		}.Run(ctx, doc)
	}
}

func machineInit(ctx context.Context, args []string, log *slog.Logger, exe string) error {
	if len(args) == 1 && args[0] == "--systemd" {
		return machine.BecomeSystemd(log)
	}
	return machine.Init(ctx, machine.InitConfig{Agent: []string{exe, "agent"}, Log: log})
}
