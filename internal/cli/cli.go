// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line, one file per group of commands. It parses flags and prints results; packages bootstrap
// and operate do the work, and main passes in the hidden commands that run on nodes. Results go to standard output,
// progress and errors to standard error.
//
// Read [New] first, then up.go.
//
//	code := cli.Run(ctx, cli.Env{Inventory: inventory, Out: os.Stdout, Err: os.Stderr, In: os.Stdin}, []string{"status", "--output", "json"})
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/report"
)

// Env has the dependencies of the commands.
type Env struct {
	Inventory *inventory.Inventory
	Out, Err  io.Writer
	In        io.Reader
	Version   string
	Hidden    []*cobra.Command // commands that run on nodes
	Forms     []bootstrap.Form // what slipway render can write
}

// Run executes the command line and returns the exit code.
func Run(ctx context.Context, e Env, args []string) int {
	out := &checkedWriter{Writer: e.Out}
	e.Out = out
	root := New(e)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil && out.err != nil { // most commands ignore the error of a print
		err = fmt.Errorf("write the result: %w", out.err)
	}
	if err == nil {
		return exitOK
	}
	var code exitError
	if errors.As(err, &code) { // the command has printed its error, or it is the exit code of a program that ran for the user
		return int(code)
	}
	var stopped interruptedError
	switch {
	case errors.As(err, &stopped):
		fmt.Fprintln(e.Err, "slipway: "+stopped.Error())
		return exitInterrupted
	case ctx.Err() != nil:
		fmt.Fprintln(e.Err, "slipway: interrupted")
		return exitInterrupted
	}
	fmt.Fprintln(e.Err, "slipway: "+strings.TrimSpace(err.Error())+rootHint(err, os.Geteuid()))
	return codeOf(err)
}

// New builds the command tree.
func New(e Env) *cobra.Command {
	root := &cobra.Command{
		Use:     "slipway",
		Short:   "Turn a short cluster spec into a running Kubernetes cluster",
		Version: e.Version,
		Long: `Slipway turns a short cluster spec into a running Kubernetes cluster. It is a single static binary.

  slipway up                    create a cluster on this host, or update it to match its spec
  slipway kubectl get pods -A   use the cluster
  slipway status                show its state, and why components are not ready
  slipway down                  delete it

Exit codes: 0 success, 1 failure, 2 usage, 3 invalid spec, 4 failed preflight check, 5 timeout, 130 interrupted.`,
		Args:              cobra.ArbitraryArgs, // strict reports an unknown command as a usage error
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true}, // see completion
	}
	root.SetVersionTemplate("slipway {{.Version}}\n")
	root.Flags().Bool("version", false, "print the version of slipway (see also slipway version)") // cobra's own flag would have the shorthand -v
	root.SetOut(e.Out)
	root.SetErr(e.Err)
	root.SetIn(e.In)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 { // the flag belongs to a command that does not exist
			return cmd.RunE(cmd, args)
		}
		return usageError{fmt.Errorf("%w\nSee '%s --help'", err, cmd.CommandPath())}
	})
	root.PersistentFlags().StringVar(&e.Inventory.Dir.Root, "root", e.Inventory.Dir.Root, "state directory, with clusters, machines and components")
	for _, g := range groups() {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, build := range g.commands {
			cmd := build(e)
			if cmd == nil { // this program does not support it
				continue
			}
			cmd.GroupID = g.title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(e.Hidden...)
	strict(root)
	return root
}

type group struct {
	title    string
	commands []func(Env) *cobra.Command
}

// groups lists the commands in the order of the help.
func groups() []group {
	type set = []func(Env) *cobra.Command
	return []group{
		{"Local clusters:", set{up, down, clusters, status, wait}},
		{"Using a cluster:", set{kubectl, kubeconfig, exec, logs}},
		{"Machines and nodes:", set{apply, machineCommand, nodeCommand, tokenCommand, certsCommand, initCommand, join}},
		{"Specs and plans:", set{specCommand, planCommand, diffCommand, renderCommand, importCommand, units, why, traceCommand}},
		{"This machine:", set{identityCommand, initSecretCommand}},
		{"This host:", set{preflight, bundleCommand, version, completion}},
	}
}

// strict makes invalid arguments a usage error, and an unknown subcommand an error instead of a request for help.
func strict(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError{fmt.Errorf("%w\nSee '%s --help'", err, cmd.CommandPath())}
			}
			return nil
		}
	}
	if cmd.HasSubCommands() {
		cmd.SuggestionsMinimumDistance = 2
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			hint := ""
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				hint = "\n\nDid you mean this?\n\t" + strings.Join(near, "\n\t")
			}
			return usageError{fmt.Errorf("unknown command %q for %q%s\nSee '%s --help'", args[0], cmd.CommandPath(), hint, cmd.CommandPath())}
		}
	}
	for _, sub := range cmd.Commands() {
		strict(sub)
	}
}

// noArgs refuses arguments, and suggests the flag that the user may have meant.
func noArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.Flags().Lookup("file") != nil:
		return fmt.Errorf("%s takes no arguments: to use a spec file, run %s -f %s", cmd.CommandPath(), cmd.CommandPath(), args[0])
	case cmd.Flags().Lookup("name") != nil:
		return fmt.Errorf("%s takes no arguments: to choose a cluster, run %s --name %s", cmd.CommandPath(), cmd.CommandPath(), args[0])
	}
	return fmt.Errorf("%s takes no arguments", cmd.CommandPath())
}

// nameFlag adds --name, the cluster that the command is about.
func nameFlag(e Env, cmd *cobra.Command, name *string) {
	*name = defaultName
	cmd.Flags().Var((*clusterName)(name), "name", "name of the cluster")
	_ = cmd.RegisterFlagCompletionFunc("name", clusterNames(e))
}

// nodeFlag adds --node. An empty value means the first node.
func nodeFlag(e Env, cmd *cobra.Command, node, cluster *string) {
	cmd.Flags().StringVar(node, "node", "", "node (default: the first one)")
	_ = cmd.RegisterFlagCompletionFunc("node", machineNames(e, cluster))
}

// clusterName is the value of --name: a valid cluster name, so neither a path nor empty.
type clusterName string

func (n *clusterName) String() string { return string(*n) }
func (n *clusterName) Type() string   { return "string" }

// Set accepts valid names of clusters.
func (n *clusterName) Set(s string) error {
	*n = clusterName(s)
	return spec.CheckName(s)
}

// defaultName is the cluster that commands use without --name.
const defaultName = "dev"

// withName returns a command line for the cluster, for hints.
func withName(command, name string) string {
	if name == defaultName {
		return "slipway " + command
	}
	return "slipway " + command + " --name " + name
}

func isTerminal(stream any) bool {
	if w, ok := stream.(io.Writer); ok {
		stream = bare(w)
	}
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Exit codes, documented in the help of slipway.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitSpec        = 3
	exitPreflight   = 4
	exitTimeout     = 5
	exitInterrupted = 130 // as in a shell: 128 + SIGINT
)

// usageError is an error in the command line. The exit code is exitUsage.
type usageError struct{ error }

// exitError is the exit code of a command that has already printed its result or its error.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// interruptedError means that the user interrupted a command. Its text says what happens to the unfinished work.
type interruptedError string

func (e interruptedError) Error() string { return string(e) }

func codeOf(err error) int {
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	var known *report.Error
	if !errors.As(err, &known) {
		return exitFailed
	}
	switch known.Kind {
	case report.InvalidSpec:
		return exitSpec
	case report.Preflight:
		return exitPreflight
	case report.TimedOut:
		return exitTimeout
	}
	return exitFailed
}

// rootHint is appended to an error that was caused by missing permissions; it is empty for any other error.
func rootHint(err error, uid int) string {
	if uid == 0 || !errors.Is(err, fs.ErrPermission) {
		return ""
	}
	return ": run the command as root, for example with sudo"
}

// stopLimit makes Ctrl-C take effect within a second, even if the work does not react to it.
const stopLimit = 900 * time.Millisecond

// stoppable runs work that may be interrupted at any moment. When ctx ends, it waits for work for at most stopLimit; work
// may then still be running when stoppable returns.
func stoppable(ctx context.Context, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	timer := time.NewTimer(stopLimit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return ctx.Err()
	}
}
