// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line: one file per sub-command. It prints, never decides: the work is done by packages bootstrap and operate,
// and the hidden commands that run on nodes are handed in by main. Results go to standard output, progress and errors to
// standard error.
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

// Env is what the commands work with.
type Env struct {
	Inventory *inventory.Inventory
	Out, Err  io.Writer
	In        io.Reader
	Version   string
	Hidden    []*cobra.Command // what runs on nodes; built by main
	Forms     []bootstrap.Form // what slipway render can write
}

// Run executes the command line and returns the exit code.
func Run(ctx context.Context, e Env, args []string) int {
	out := &checkedWriter{Writer: e.Out}
	e.Out = out
	root := New(e)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil && out.err != nil { // most output is written without a look at the error
		err = fmt.Errorf("write the result: %w", out.err)
	}
	if err == nil {
		return exitOK
	}
	var code exitError
	if errors.As(err, &code) { // a program run for the user has ended with its own code, or everything is said already
		return int(code)
	}
	var stopped interruptedError
	switch {
	case errors.As(err, &stopped):
		fmt.Fprintln(e.Err, "slipway: "+stopped.Error())
		return exitInterrupted
	case ctx.Err() != nil:
		fmt.Fprintln(e.Err, "slipway: stopped")
		return exitInterrupted
	}
	text := strings.TrimSpace(err.Error())
	if strings.HasPrefix(text, "unknown command") && !strings.Contains(text, "\nSee ") { // of cobra's own making
		text += "\nSee 'slipway --help'"
	}
	fmt.Fprintln(e.Err, "slipway: "+text+rootHint(err, os.Geteuid()))
	return codeOf(err)
}

// New builds the command tree.
func New(e Env) *cobra.Command {
	root := &cobra.Command{
		Use:     "slipway",
		Short:   "From a short cluster spec to a running Kubernetes cluster",
		Version: e.Version,
		Long: `Slipway takes a short cluster spec to a running Kubernetes cluster, out of one static binary.

  slipway up                    make a cluster on this machine, or bring it to its spec
  slipway kubectl get pods -A   use it
  slipway status                see how it is, and why what is not ready is not
  slipway down                  remove it without a trace

Exit codes: 0 done, 1 failed, 2 usage, 3 invalid spec, 4 preflight, 5 timed out while waiting, 130 stopped by Ctrl-C.`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true}, // completion.go has our own
	}
	root.SetVersionTemplate("slipway {{.Version}}\n")
	root.Flags().Bool("version", false, "print the version of slipway; slipway version tells more") // without cobra's -v
	root.SetOut(e.Out)
	root.SetErr(e.Err)
	root.SetIn(e.In)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w\nSee '%s --help'", err, cmd.CommandPath())}
	})
	root.PersistentFlags().StringVar(&e.Inventory.Dir.Root, "root", e.Inventory.Dir.Root, "folder of clusters, machines and components")
	for _, g := range groups() {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, build := range g.commands {
			cmd := build(e)
			if cmd == nil { // this program has nothing for it
				continue
			}
			cmd.GroupID = g.title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(e.Hidden...)
	for _, cmd := range root.Commands() {
		strict(cmd)
	}
	return root
}

type group struct {
	title    string
	commands []func(Env) *cobra.Command
}

// groups is the table of what users see.
func groups() []group {
	type set = []func(Env) *cobra.Command
	return []group{
		{"A cluster on this host:", set{up, down, clusters, status, wait}},
		{"Use it:", set{kubectl, kubeconfig, exec, logs}},
		{"Machines and nodes:", set{apply, machineCommand, nodeCommand, tokenCommand, certsCommand, initCommand, join}},
		{"Understand it:", set{specCommand, planCommand, diffCommand, renderCommand, importCommand, units, why, traceCommand}},
		{"The machine that this runs on:", set{identityCommand, initSecretCommand}},
		{"This host:", set{preflight, bundleCommand, version, completion}},
	}
}

// strict makes wrong arguments a usage error, and a wrong word below a group of commands an error at all.
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

// noArgs says what to do with the argument that a command does not take.
func noArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.Flags().Lookup("file") != nil:
		return fmt.Errorf("%s takes no argument: to name a spec, write %s -f %s", cmd.CommandPath(), cmd.CommandPath(), args[0])
	case cmd.Flags().Lookup("name") != nil:
		return fmt.Errorf("%s takes no argument: to name a cluster, write %s --name %s", cmd.CommandPath(), cmd.CommandPath(), args[0])
	}
	return fmt.Errorf("%s takes no argument", cmd.CommandPath())
}

// nameFlag is the --name of every command that concerns a local cluster.
func nameFlag(e Env, cmd *cobra.Command, name *string) {
	*name = defaultName
	cmd.Flags().Var((*clusterName)(name), "name", "name of the local cluster")
	_ = cmd.RegisterFlagCompletionFunc("name", clusterNames(e))
}

// nodeFlag chooses a node of the cluster; empty is the first one.
func nodeFlag(e Env, cmd *cobra.Command, node, cluster *string) {
	cmd.Flags().StringVar(node, "node", "", "node (default: the first one)")
	_ = cmd.RegisterFlagCompletionFunc("node", machineNames(e, cluster))
}

// clusterName is the value of --name: never a path, never empty.
type clusterName string

func (n *clusterName) String() string { return string(*n) }
func (n *clusterName) Type() string   { return "string" }

// Set refuses what no spec could be called.
func (n *clusterName) Set(s string) error {
	*n = clusterName(s)
	return spec.CheckName(s)
}

// defaultName is the cluster of those who have one.
const defaultName = "dev"

// withName is a command line that concerns the cluster, for hints.
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

// Exit codes, documented in `slipway help`.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitSpec        = 3
	exitPreflight   = 4
	exitTimeout     = 5
	exitInterrupted = 130 // what a shell says of a program that SIGINT ended
)

type usageError struct{ error }

// exitError is the exit code of a command that has said everything itself.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// interruptedError tells what happens to work that was stopped by the user.
type interruptedError string

func (e interruptedError) Error() string { return string(e) }

func codeOf(err error) int {
	var usage usageError
	if errors.As(err, &usage) || strings.HasPrefix(err.Error(), "unknown command") { // cobra's own has no type
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

// rootHint is what to say of an error behind which lie only missing rights.
func rootHint(err error, uid int) string {
	if uid == 0 || !errors.Is(err, fs.ErrPermission) {
		return ""
	}
	return ": run it as root, with sudo"
}

// stopLimit keeps the promise that Ctrl-C works within a second, whatever the work is doing just then.
const stopLimit = 900 * time.Millisecond

// stoppable runs work that may be cut off at any moment. Once ctx has ended, it waits only a little.
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
