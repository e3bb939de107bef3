// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/operate"
)

func nodeDrain(e Env) *cobra.Command {
	var name string
	var undo, yes bool
	var timeout time.Duration
	var out format
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Move the pods of a node away, and let none come",
		Long: `Move the pods of a node away, as their disruption budgets allow, and let none come until --undo. It tells what it waits for.
Pods that no controller makes again are gone then.`,
		Example: `  slipway node drain dev-worker-0
  slipway node drain dev-worker-0 --timeout 10m --yes
  slipway node drain dev-worker-0 --undo`,
		Args: cobra.ExactArgs(1),
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().BoolVar(&undo, "undo", false, "let pods come again")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait for the pods")
	yesFlag(cmd, &yes)
	outputFlag(cmd, &out)
	cmd.ValidArgsFunction = oneMachine(e, &name)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if timeout <= 0 {
			return usageError{errors.New("--timeout: use a time above zero")}
		}
		if !undo {
			if err := confirm(e, yes, "Move all pods away from node "+args[0]+"?"); err != nil {
				return err
			}
		}
		err := stoppable(cmd.Context(), func() error {
			return operate.DrainNode(cmd.Context(), *e.Inventory, name, args[0], timeout, undo, say(e))
		})
		if cmd.Context().Err() != nil {
			return interruptedError("stopped; pods stay away from " + args[0] + " until " + withName("node drain "+args[0]+" --undo", name))
		}
		if err != nil {
			return err
		}
		word := "is drained; " + withName("node drain "+args[0]+" --undo", name) + " lets pods come again"
		if undo {
			word = "takes pods again"
		}
		return left(e, out, "NodeDrain", args[0], word, map[string]any{"node": args[0], "undone": undo})
	}
	return cmd
}

func nodeRemove(e Env) *cobra.Command {
	var name string
	var lost, yes bool
	var timeout time.Duration
	var out format
	cmd := &cobra.Command{
		Use:   "remove NODE",
		Short: "Take a node out of its cluster for good",
		Long: `Take a node out of its cluster for good: its pods are moved away, its etcd leaves first, its identity is revoked and its Node is
deleted. Refused while the cluster would lose its quorum. Broken off, the same command goes on. --lost is for a machine that will
not come back: its pods are not waited for. The machine itself is made free with slipway node reset.`,
		Example: `  slipway node remove dev-worker-0
  slipway node remove dev-main-2 --lost --yes`,
		Args: cobra.ExactArgs(1),
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().BoolVar(&lost, "lost", false, "the machine is gone for good: do not wait for its pods")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait for the pods")
	yesFlag(cmd, &yes)
	outputFlag(cmd, &out)
	cmd.ValidArgsFunction = oneMachine(e, &name)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if timeout <= 0 {
			return usageError{errors.New("--timeout: use a time above zero")}
		}
		if err := confirm(e, yes, "Take node "+args[0]+" out of the cluster for good?"); err != nil {
			return err
		}
		err := stoppable(cmd.Context(), func() error {
			return operate.RemoveNode(cmd.Context(), *e.Inventory, name, args[0], timeout, lost, say(e))
		})
		if cmd.Context().Err() != nil {
			return interruptedError("stopped half-way; go on with " + withName("node remove "+args[0], name))
		}
		if err != nil {
			return err
		}
		return left(e, out, "NodeRemoval", args[0], "is out of the cluster", map[string]any{"node": args[0]})
	}
	return cmd
}

// say shows what a control plane tells while it works.
func say(e Env) func(string) {
	return func(text string) { fmt.Fprintln(e.Err, "  "+oneLine(text)) }
}

func left(e Env, out format, kind, node, word string, v any) error {
	if out != asText {
		return out.object(e.Out, kind, v)
	}
	fmt.Fprintf(e.Out, "node %s %s\n", node, word)
	return nil
}
