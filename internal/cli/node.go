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
		Short: "List, approve, drain, remove and reset nodes",
		Long: `List, approve, drain, remove and reset the nodes of a cluster. A control plane of the cluster must be running. On a
machine of a cluster, these commands use the agent of that machine.`,
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
		Long: `List the nodes of a cluster, including those that have not joined yet, and what a node that is not ready is waiting for.
The JSON output is an array of objects.`,
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

// array writes a list as JSON or YAML, without apiVersion and kind.
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
		fmt.Fprintln(w, "the cluster has no nodes yet: see slipway status")
		return
	}
	rows := [][]string{{"NODE", "ROLES", "ADDRESS", "STATE", "KUBELET", "ETCD", "POD CIDR", "WAITING FOR"}}
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
		Short: "Approve a replacement machine for a node",
		Long: `Approve a machine that asks to join under the name of an existing node, for example because the old machine was
replaced. slipway node list shows the key of the waiting machine: compare it with slipway identity on that machine.
The old machine can then no longer join.`,
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
		fmt.Fprintf(e.Out, "node %s approved: its machine is now the one with key %s\n", args[0], key)
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
		Short: "Reset a machine so that it can join another cluster",
		Long: `Reset a machine: delete everything that slipway created on it for its cluster, including the data, so that the machine
can join another cluster. Remove the node with slipway node remove first; otherwise the cluster keeps waiting for it.
The machine refuses while its cluster would lose its quorum. Use --lost if the cluster no longer exists.`,
		Example: `  slipway node reset dev-worker-0
  slipway node reset dev-main-0 --lost --yes`,
		Args: cobra.ExactArgs(1),
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().BoolVar(&lost, "lost", false, "the cluster no longer exists: do not ask it")
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
			question := fmt.Sprintf("Remove machine %s from cluster %s and delete all its data?", args[0], m.Cluster)
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
			return errors.New("reset machine " + args[0] + ": it is joining a cluster: wait until it has joined or given up")
		case free:
			fmt.Fprintf(e.Out, "machine %s does not belong to a cluster: nothing to reset\n", args[0])
		default:
			fmt.Fprintf(e.Out, "machine %s reset; it was node %s of cluster %s\n", args[0], m.Node, m.Cluster)
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
		Short: "Cordon a node and evict its pods",
		Long: `Cordon a node and evict its pods, within their disruption budgets. The node takes no new pods until drain --undo. Pods
without a controller are deleted and not created again.`,
		Example: `  slipway node drain dev-worker-0
  slipway node drain dev-worker-0 --timeout 10m --yes
  slipway node drain dev-worker-0 --undo`,
		Args: cobra.ExactArgs(1),
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().BoolVar(&undo, "undo", false, "uncordon the node")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait until the pods are evicted")
	yesFlag(cmd, &yes)
	outputFlag(cmd, &out)
	cmd.ValidArgsFunction = oneMachine(e, &name)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if timeout <= 0 {
			return usageError{errors.New("--timeout must be greater than zero")}
		}
		if !undo {
			if err := confirm(e, yes, "Evict all pods from node "+args[0]+"?"); err != nil {
				return err
			}
		}
		err := stoppable(cmd.Context(), func() error {
			return operate.DrainNode(cmd.Context(), *e.Inventory, name, args[0], timeout, undo, showStep(e))
		})
		if cmd.Context().Err() != nil {
			return interruptedError("interrupted; node " + args[0] + " stays cordoned until " + withName("node drain "+args[0]+" --undo", name))
		}
		if err != nil {
			return err
		}
		if out != asText {
			return out.object(e.Out, "NodeDrain", map[string]any{"node": args[0], "undone": undo})
		}
		if undo {
			fmt.Fprintf(e.Out, "node %s uncordoned\n", args[0])
		} else {
			fmt.Fprintf(e.Out, "node %s drained; to uncordon it, run %s\n", args[0], withName("node drain "+args[0]+" --undo", name))
		}
		return nil
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
		Short: "Remove a node from its cluster permanently",
		Long: `Remove a node from its cluster permanently: evict its pods, remove its etcd member, revoke its identity and delete its
Node object. Remove refuses if the cluster would lose its quorum. You can interrupt it: run the same command again
to continue. Use --lost if the machine no longer exists, so that slipway does not wait for its pods. To use the
machine in another cluster, run slipway node reset afterwards.`,
		Example: `  slipway node remove dev-worker-0
  slipway node remove dev-main-2 --lost --yes`,
		Args: cobra.ExactArgs(1),
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().BoolVar(&lost, "lost", false, "the machine no longer exists: do not wait for its pods")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait until the pods are evicted")
	yesFlag(cmd, &yes)
	outputFlag(cmd, &out)
	cmd.ValidArgsFunction = oneMachine(e, &name)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if timeout <= 0 {
			return usageError{errors.New("--timeout must be greater than zero")}
		}
		if err := confirm(e, yes, "Remove node "+args[0]+" from the cluster permanently?"); err != nil {
			return err
		}
		err := stoppable(cmd.Context(), func() error {
			return operate.RemoveNode(cmd.Context(), *e.Inventory, name, args[0], timeout, lost, showStep(e))
		})
		if cmd.Context().Err() != nil {
			return interruptedError("interrupted before the node was removed: continue with " + withName("node remove "+args[0], name))
		}
		if err != nil {
			return err
		}
		if out != asText {
			return out.object(e.Out, "NodeRemoval", map[string]any{"node": args[0]})
		}
		fmt.Fprintf(e.Out, "node %s removed from the cluster\n", args[0])
		return nil
	}
	return cmd
}

// showStep returns a function that prints what a control plane reports while it works.
func showStep(e Env) func(string) {
	return func(text string) { fmt.Fprintln(e.Err, "  "+oneLine(text)) }
}
