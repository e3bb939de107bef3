// SPDX-License-Identifier: Apache-2.0

package main

import (
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
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/node/fetch"
	"github.com/slipway-project/slipway/internal/node/host"
	"github.com/slipway-project/slipway/internal/reconcile"
)

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
