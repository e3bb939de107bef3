// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/operate"
)

func nodeCommand(e Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "List the nodes of a cluster, let machines in, take them out",
		Long: `List the nodes of a cluster, let machines in, and take them out again. A control plane that runs answers: of the local cluster
that --name names, or, run on a machine, that machine itself.`,
		Example: `  slipway node list
  slipway node drain dev-worker-0
  slipway node remove dev-worker-0`,
	}
	cmd.AddCommand(nodeList(e), nodeApprove(e), nodeDrain(e), nodeRemove(e), nodeReset(e))
	return cmd
}

func nodeList(e Env) *cobra.Command {
	var name string
	var out format
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the nodes of a cluster",
		Long: `List the nodes that the cluster knows, whether they have come yet or not, and what those wait for that are not ready. As JSON it
is an array of objects.`,
		Example: `  slipway node list
  slipway node list --output json | jq -r '.[] | select(.ready | not) | .name'`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var nodes []operate.Node
		err := stoppable(cmd.Context(), func() (err error) {
			nodes, err = operate.Nodes(cmd.Context(), *e.Inventory, name)
			return err
		})
		if err != nil {
			return err
		}
		if out != asText {
			return out.array(e.Out, nodes)
		}
		nodeText(e.Out, nodes)
		return nil
	}
	return cmd
}

// array writes a list for programs that want nothing but the list.
func (f format) array(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err == nil && f == asYAML {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return fmt.Errorf("write list: %w", err)
	}
	_, err = fmt.Fprintln(w, strings.TrimRight(string(text), "\n"))
	return err
}

func nodeText(w io.Writer, nodes []operate.Node) {
	if len(nodes) == 0 {
		fmt.Fprintln(w, "the cluster knows no nodes yet: see slipway status")
		return
	}
	rows := [][]string{{"NODE", "ROLES", "ADDRESS", "STATE", "KUBELET", "ETCD", "PODS", "WAITS FOR"}}
	for _, n := range nodes {
		rows = append(rows, []string{
			n.Name, strings.Join(n.Roles, ","), orDash(strings.Join(n.Addresses, ",")), nodeState(n), orDash(n.Version), orDash(n.Member),
			orDash(n.PodCIDR), orDash(oneLine(n.Waiting)),
		})
	}
	table(w, rows)
}

func nodeState(n operate.Node) string {
	state := "not ready"
	if n.Ready {
		state = "ready"
	}
	if n.Unschedulable {
		state += ", drained"
	}
	return state
}

func nodeApprove(e Env) *cobra.Command {
	var name string
	var out format
	cmd := &cobra.Command{
		Use:   "approve NODE",
		Short: "Let the machine in that asks for a node's name",
		Long: `Let the machine in that asks for the name of a node whose machine was another one, as after it was replaced. slipway node list
shows the key of who waits: compare it with the one on the machine's console. The old machine is not let in any more.`,
		Example: `  slipway node approve dev-worker-0
  slipway node approve test-worker-0 --name test`,
		Args: cobra.ExactArgs(1),
	}
	nameFlag(e, cmd, &name)
	outputFlag(cmd, &out)
	cmd.ValidArgsFunction = oneMachine(e, &name)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		key, err := operate.ApproveNode(cmd.Context(), *e.Inventory, name, args[0])
		if err != nil {
			return err
		}
		if out != asText {
			return out.object(e.Out, "NodeApproval", map[string]any{"node": args[0], "key": key})
		}
		fmt.Fprintf(e.Out, "node %s is the machine with key %s from now on\n", args[0], key)
		return nil
	}
	return cmd
}

func nodeReset(e Env) *cobra.Command {
	var name string
	var lost, yes bool
	var out format
	cmd := &cobra.Command{
		Use:   "reset MACHINE",
		Short: "Take a machine out of its cluster and make it free again",
		Long: `Take a machine out of its cluster and remove all that was made for that there, its data too, and nothing else: then it is free for
another cluster. The cluster is asked first, and says no while it would lose its quorum; --lost is for a cluster that is gone for
good. Take a node out with slipway node remove before, or its cluster goes on waiting for it.`,
		Example: `  slipway node reset dev-worker-0
  slipway node reset dev-main-0 --lost --yes`,
		Args: cobra.ExactArgs(1),
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().BoolVar(&lost, "lost", false, "the cluster is gone for good: do not ask it")
	yesFlag(cmd, &yes)
	outputFlag(cmd, &out)
	cmd.ValidArgsFunction = oneMachine(e, &name)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		m, err := operate.Membership(cmd.Context(), *e.Inventory, name, args[0])
		if err != nil {
			return err
		}
		free := m.Phase != lock.Committed
		if !free {
			question := fmt.Sprintf("Take machine %s out of cluster %s and remove all its data?", args[0], m.Cluster)
			if err := confirm(e, yes, question); err != nil {
				return err
			}
			if err := operate.ResetMachine(cmd.Context(), *e.Inventory, name, args[0], m.Cluster, lost); err != nil {
				return err
			}
		}
		switch {
		case out != asText:
			return out.object(e.Out, "NodeReset", map[string]any{"machine": args[0], "cluster": m.Cluster, "changed": !free})
		case free && m.Phase == lock.Claimed:
			return errors.New("machine " + args[0] + " is just being taken into a cluster: it frees itself if that comes to nothing")
		case free:
			fmt.Fprintf(e.Out, "machine %s was free already\n", args[0])
		default:
			fmt.Fprintf(e.Out, "machine %s is free; it was node %s of cluster %s\n", args[0], m.Node, m.Cluster)
		}
		return nil
	}
	return cmd
}

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
