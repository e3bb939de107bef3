// SPDX-License-Identifier: Apache-2.0

// Slipway turns a short cluster spec into a running Kubernetes cluster. It is one program for operators and nodes: the commands
// that run on nodes are hidden (agent.go). Only this package chooses implementations and builds them; it decides nothing. Read
// run first, then agent.go.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/backend/dataguard"
	"github.com/slipway-project/slipway/internal/backend/files"
	"github.com/slipway-project/slipway/internal/backend/supervise"
	"github.com/slipway-project/slipway/internal/backend/systemd"
	"github.com/slipway-project/slipway/internal/balancer"
	"github.com/slipway-project/slipway/internal/cli"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/node/facts"
	"github.com/slipway-project/slipway/internal/node/prepare"
	"github.com/slipway-project/slipway/internal/preflight"
	"github.com/slipway-project/slipway/internal/proxy"
	"github.com/slipway-project/slipway/internal/sshhost"
)

// version is stamped by the Makefile.
var version = "dev"

func main() {
	if len(os.Args) > 1 && os.Args[1] == "unit-exec" { // becomes the unit; from here on signals are for the unit
		fail(supervise.Exec(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "unit-pre-start" { // runs at each start of a unit, so it does nothing else
		if err := systemd.PreStart(context.Background(), os.Args[2:], files.Fingerprint); err != nil {
			fail(err)
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == dataguard.Command { // runs at each start of a container
		fail(dataguard.Guard(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	os.Exit(run(ctx))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "slipway:", err)
	os.Exit(1)
}

func run(ctx context.Context) int {
	exe, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "slipway: find this program:", err)
		return 1
	}
	home, _ := os.UserHomeDir() // reported later by the commands that need it
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return cli.Run(ctx, cli.Env{
		Inventory: &inventory.Inventory{
			Dir: clusterdir.Dir{Root: stateRoot(os.Geteuid(), home, os.Getenv("XDG_STATE_HOME"))}, Exe: exe, Log: quiet,
			SSH: sshhost.Config{Home: home, AgentSocket: os.Getenv("SSH_AUTH_SOCK")},
		},
		Out: os.Stdout, Err: os.Stderr, In: os.Stdin,
		Version: version,
		Hidden:  hidden(log, exe),
		Forms:   forms(),
	}, os.Args[1:])
}

// stateRoot is the state directory: the host's for root, otherwise the user's own.
func stateRoot(uid int, home, xdg string) string {
	switch {
	case uid == 0 || home == "" && xdg == "":
		return stateDir
	case filepath.IsAbs(xdg):
		return filepath.Join(xdg, "slipway")
	}
	return filepath.Join(home, ".local", "state", "slipway")
}

// hidden are the commands that Slipway runs itself, on nodes and on the operator's host.
func hidden(log *slog.Logger, exe string) []*cobra.Command {
	command := func(use string, run func(ctx context.Context, args []string) error) *cobra.Command {
		return &cobra.Command{Use: use, Hidden: true, DisableFlagParsing: true, RunE: func(cmd *cobra.Command, args []string) error {
			return run(cmd.Context(), args)
		}}
	}
	return []*cobra.Command{
		command("agent", func(ctx context.Context, args []string) error {
			backend, err := backendFlag(args)
			if err != nil {
				return err
			}
			return agent(ctx, backend, log)
		}),
		command("machine-init", func(ctx context.Context, args []string) error { return machineInit(ctx, args, log, exe) }),
		command("proxy-serve", proxy.Child),
		command("node-task", nodeTask),
		command("machine-report", machineReport),
		command(sshhost.StreamCommand, stream),
		command("api-balancer", func(ctx context.Context, args []string) error { return balancer.Command(ctx, args, log) }),
	}
}

// machineReport prints what slipway apply needs to know about this machine.
func machineReport(ctx context.Context, args []string) error {
	r, err := preflight.ReportMachine(ctx, stateDir, version, len(args) > 0 && args[0] == "control-plane")
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// stream connects standard input and output to a unix socket.
func stream(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s: name a socket", sshhost.StreamCommand)
	}
	conn, err := proxy.DialUnix(ctx, args[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	return sshhost.Stream(conn, os.Stdin, os.Stdout)
}

// thisHost is the machine whose operating system is prepared.
func thisHost(out io.Writer) prepare.Host {
	return prepare.Host{Root: "/", Shared: facts.SharedKernel(), Manager: facts.PackageManager("/"), Out: out}
}

// nodeTask carries out one task of a plan; with --check it only finds out whether its work is done.
func nodeTask(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "--check" {
		return thisHost(nil).Done(ctx, args[1:])
	}
	return thisHost(os.Stdout).Do(ctx, args)
}
