// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/backend/files"
	"github.com/slipway-project/slipway/internal/backend/probe"
	"github.com/slipway-project/slipway/internal/backend/supervise"
	"github.com/slipway-project/slipway/internal/ca"
	"github.com/slipway-project/slipway/internal/control"

	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/node"
	"github.com/slipway-project/slipway/internal/node/facts"
	"github.com/slipway-project/slipway/internal/proxy"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Where an agent keeps its things.
const (
	stateDir = "/var/lib/slipway"
	runDir   = machine.RunDir
	apiLocal = "127.0.0.1:6443"
)

// agent runs a node's agent until ctx ends, as on SIGTERM, or until PID 1 says that the machine goes down.
func agent(ctx context.Context, log *slog.Logger) error {
	down := make(chan os.Signal, 1)
	signal.Notify(down, machine.DownSignal)
	defer signal.Stop(down)
	a, host, err := buildAgent(log)
	if err != nil {
		return err
	}
	defer func() { _ = host.Close() }() // the units go on, whatever it says
	apiAddress := func() string { return a.APIAddress(apiLocal) }
	return live(ctx, down, func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return a.Run(ctx) })
		group.Go(func() error { return proxy.ServeUnix(ctx, filepath.Join(runDir, "api.sock"), apiAddress) })
		return group.Wait()
	}, a.Stop)
}

// stopLimit is below the time that PID 1 leaves an agent.
const stopLimit = 25 * time.Second

// live works until ctx ends, and leaves the units running for the next agent; or until the machine goes down, and only then
// takes them down in order.
func live(ctx context.Context, down <-chan os.Signal, work, stop func(ctx context.Context) error) error {
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
		return err
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	return errors.Join(err, stop(stopping))
}

func buildAgent(log *slog.Logger) (*node.Agent, *supervise.Host, error) {
	found, err := facts.Find()
	if err != nil {
		return nil, nil, fmt.Errorf("find facts: %w", err)
	}
	for _, dir := range []string{filepath.Join(stateDir, "plan"), filepath.Join(stateDir, "trace"), filepath.Join(runDir, "units")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, nil, err
		}
	}
	prober := probe.New()
	onDisk, err := files.New(files.Config{
		Store: filepath.Join(stateDir, "store"), Verified: filepath.Join(runDir, "verified"), Keys: &ca.Local{}, Probe: prober,
	})
	if err != nil {
		return nil, nil, err
	}
	board := reconcile.NewBoard()
	host, err := supervise.New(supervise.Config{
		StateDir: filepath.Join(runDir, "units"), LogDir: "/var/log/slipway", Files: onDisk, Probe: prober, Log: log,
		OnEvent: func(e supervise.Event) { tell(board, e) },
	})
	if err != nil {
		return nil, nil, err
	}
	a, err := node.New(node.Config{
		Host: unitHost{host}, Facts: found, PlanFile: filepath.Join(stateDir, "plan", "plan.json"),
		TraceFile: filepath.Join(stateDir, "trace", "last.json"), Socket: filepath.Join(runDir, "agent.sock"), Version: version, Log: log, Board: board,
		Control: func(ctx context.Context, doc []byte, board *reconcile.Board) error {
			connect := func(kubeconfig string) (control.Cluster, error) { return control.Connect(kubeconfig, log) }
			return control.Role{Connect: connect, Resolve: control.ResolveUDP, Board: board, Log: log}.Run(ctx, doc)
		},
		AfterStep: failpoint(),
	})
	return a, host, err
}

func machineInit(ctx context.Context, log *slog.Logger, exe string) error {
	return machine.Init(ctx, machine.InitConfig{Agent: []string{exe, "agent"}, Log: log})
}
