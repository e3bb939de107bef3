// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line: one file per sub-command. It prints, never decides: the work is done by package launch,
// and the hidden commands that run on nodes are handed in by main.
//
// Read [New] first, then up.go.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/launch"
)

// Exit codes, documented in `slipway help`.
const (
	exitOK        = 0
	exitFailed    = 1
	exitUsage     = 2
	exitSpec      = 3
	exitPreflight = 4
	exitTimeout   = 5
)

// Env is what the commands work with.
type Env struct {
	Launcher *launch.Launcher
	Out, Err io.Writer
	In       io.Reader
	Version  string
	Hidden   []*cobra.Command // what runs on nodes; built by main
}

// Run executes the command line and returns the exit code.
func Run(ctx context.Context, e Env, args []string) int {
	root := New(e)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var code exitError
	if errors.As(err, &code) { // a program run for the user has ended with its own code
		return int(code)
	}
	fmt.Fprintln(e.Err, "slipway: "+strings.TrimSpace(err.Error()))
	return codeOf(err)
}

// New builds the command tree.
func New(e Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "slipway",
		Short: "From a short cluster spec to a running Kubernetes cluster",
		Long: `Slipway takes a short cluster spec to a running Kubernetes cluster, out of one static binary.

Exit codes: 0 done, 1 failed, 2 usage, 3 invalid spec, 4 preflight, 5 timed out while waiting.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(e.Out)
	root.SetErr(e.Err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w\nSee '%s --help'", err, cmd.CommandPath())}
	})
	root.PersistentFlags().StringVar(&e.Launcher.Root, "root", e.Launcher.Root, "folder of clusters, machines and components")
	root.AddCommand(commands(e)...)
	root.AddCommand(e.Hidden...)
	return root
}

// commands is the table of what users see.
func commands(e Env) []*cobra.Command {
	return []*cobra.Command{up(e), down(e)}
}

type usageError struct{ error }

// exitError is the exit code of a program that was run for the user.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func codeOf(err error) int {
	var usage usageError
	if errors.As(err, &usage) || strings.HasPrefix(err.Error(), "unknown command") {
		return exitUsage
	}
	var known *launch.Error
	if !errors.As(err, &known) {
		return exitFailed
	}
	switch known.Kind {
	case launch.InvalidSpec:
		return exitSpec
	case launch.Preflight:
		return exitPreflight
	case launch.TimedOut:
		return exitTimeout
	}
	return exitFailed
}

// nameFlag is the --name of every command that concerns a local cluster.
func nameFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "name", "dev", "name of the local cluster")
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
