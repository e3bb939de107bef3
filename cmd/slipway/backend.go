// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/backend/files"
	"github.com/slipway-project/slipway/internal/backend/pods"
	"github.com/slipway-project/slipway/internal/backend/probe"
	"github.com/slipway-project/slipway/internal/backend/supervise"
	"github.com/slipway-project/slipway/internal/backend/systemd"
	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/ca"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// supervisor is whoever runs the units of this machine's plan.
type supervisor interface {
	reconcile.Host
	Status() []units.Status
	Stop(ctx context.Context, name string) error
	StopAll(ctx context.Context, order []string) error
	Close() error
}

const logDir = "/var/log/slipway"

// newHost makes what runs units, and what looks after the pods of components that run as pods.
func newHost(b *built, backend string, custody *ca.Local, board *reconcile.Board, log *slog.Logger) error {
	prober := probe.New()
	prober.Task = thisHost(nil).Done
	b.pods = pods.New(pods.Config{
		Probe: prober, Log: log, OnEvent: func(e pods.Event) { tellPod(board, e) }, RestartKubelet: func(context.Context) error { return restartKubelet(b.host) },
	})
	onDisk, err := files.New(files.Config{
		Store: storeDir, Verified: filepath.Join(runDir, "verified"), Keys: custody, Probe: prober, Fetch: newFetcher(log).Fetch, Pods: b.pods,
	})
	if err != nil {
		return err
	}
	b.host, err = newSupervisor(backend, onDisk, prober, log, func(e units.Event) { tell(board, e) })
	return err
}

// newSupervisor builds what runs units; backend is auto, supervise or systemd.
func newSupervisor(backend string, onDisk *files.Host, prober *probe.Prober, log *slog.Logger, onEvent func(units.Event)) (supervisor, error) {
	supervised := filepath.Join(runDir, "units")
	if backend == "auto" {
		backend = choose(supervised, "/run/systemd/private")
		log.Info("who runs the units was chosen", "backend", backend)
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
	return nil, fmt.Errorf("there is no backend %q: it is auto, supervise or systemd", backend)
}

// choose takes systemd where it is PID 1. Units that an agent before this one of the same boot runs itself stay with it: two
// supervisors would run two copies.
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
	backend := flags.String("backend", "auto", "who runs the units: auto, supervise or systemd")
	if err := flags.Parse(args); err != nil {
		return "", fmt.Errorf("agent: %w", err)
	}
	if flags.NArg() > 0 {
		return "", fmt.Errorf("agent: unknown argument %q", flags.Arg(0))
	}
	return *backend, nil
}
