// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/cli/progress"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/operate"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/report"
)

func up(e Env) *cobra.Command {
	var o bootstrap.UpOptions
	var out format
	var kind initKind
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Create a local cluster, or update it",
		Long: `Create a local cluster, or update it to match its spec. You can interrupt up at any time: run it again to continue.

Slipway stores the spec, and a later up without --file uses the stored one. The first up builds the components, which
takes some minutes. After that, creating a cluster takes seconds.`,
		Example: `  slipway up                                # one machine, control plane and worker
  slipway up --control-planes 3 --workers 2 # five machines
  slipway up -f cluster.yaml                # use a spec file
  slipway up --name test --wait 0           # do not wait until the cluster is ready
  slipway up --init systemd                 # run systemd as PID 1 of the machines
  slipway up --output json 2>events.ndjson  # for scripts`,
		Args: noArgs,
	}
	specFlags(e, cmd, &o.Source)
	cmd.Flags().BoolVar(&o.NoInstall, "no-install", false, "do not install missing packages or raise limits on the host, only report them")
	cmd.Flags().DurationVar(&o.Wait, "wait", 5*time.Minute, "how long to wait until the cluster is ready; 0 does not wait")
	initFlag(cmd, &kind, "PID 1 of new machines; existing machines keep theirs")
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Init = kind.kind
		if o.Wait < 0 {
			return usageError{errors.New("--wait must be a positive duration, or 0 to not wait")}
		}
		var result bootstrap.Result
		err := showing(cmd.Context(), e, out, func(report func(report.Event)) (err error) {
			o.Report = report
			result, err = bootstrap.Up(cmd.Context(), *e.Inventory, o)
			return err
		})
		if cmd.Context().Err() != nil {
			return interruptedError("interrupted; machines keep working, run " + resumeCommand(o) + " to continue")
		}
		if hint := rootHint(err, os.Geteuid()); hint != "" {
			return &report.Error{Kind: report.Preflight, Err: err} // Run adds the hint
		}
		return showUp(e, out, result, o, err)
	}
	return cmd
}

// resumeCommand is the command line that continues an interrupted up.
func resumeCommand(o bootstrap.UpOptions) string {
	s := o.Source
	command := "slipway up"
	if s.Name != "" { // a file and no --name: the spec names the cluster
		command = withName("up", s.Name)
	}
	if s.File != "" {
		command += " -f " + s.File
	}
	if s.Version != "" {
		command += " --kubernetes-version " + s.Version
	}
	if n := s.Shape.ControlPlanes; n != nil {
		command += " --control-planes " + strconv.Itoa(*n)
	}
	if n := s.Shape.Workers; n != nil {
		command += " --workers " + strconv.Itoa(*n)
	}
	if o.Init != "" {
		command += " --init " + string(o.Init)
	}
	return command
}

// sourceFlags adds the flags that select a spec.
func sourceFlags(cmd *cobra.Command, s *clusterdir.Source) {
	cmd.Flags().StringVarP(&s.File, "file", "f", "", "cluster spec; - reads standard input (default: the stored spec, or a cluster of one machine)")
	cmd.Flags().StringVar(&s.Version, "kubernetes-version", "", "Kubernetes minor version, such as 1.36")
	_ = cmd.MarkFlagFilename("file", "yaml", "yml")
	_ = cmd.RegisterFlagCompletionFunc("kubernetes-version", minors)
}

// showing runs work and shows its progress on standard error. Warnings of the log appear between the progress lines.
func showing(ctx context.Context, e Env, out format, work func(report func(report.Event)) error) error {
	d := progress.New(progress.Options{Out: e.Err, Mode: progress.ModeFor(e.Err, out == asJSON, os.Getenv)})
	defer d.Close()
	if out != asJSON {
		log := e.Inventory.Log
		defer func() { e.Inventory.Log = log }()
		e.Inventory.Log = slog.New(slog.NewTextHandler(d, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	return stoppable(ctx, func() error { return work(d.Event) })
}

// upView is the JSON and YAML result of up and apply.
type upView struct {
	Cluster    string             `json:"cluster"`
	Release    string             `json:"release"`
	Ready      bool               `json:"ready"`
	Changed    bool               `json:"changed"`
	Steps      int                `json:"steps"`
	Kubeconfig string             `json:"kubeconfig"`
	Server     string             `json:"server"`
	Elapsed    string             `json:"elapsed"`
	Built      string             `json:"built,omitempty"`
	Milestones []milestoneView    `json:"milestones"`
	Unready    []reconcile.Status `json:"unready,omitempty"`
}

type milestoneView struct {
	Name string `json:"name"`
	At   string `json:"at"`
}

func showUp(e Env, out format, r bootstrap.Result, o bootstrap.UpOptions, err error) error {
	timedOut := isTimeout(err)
	if err != nil && !timedOut {
		return err
	}
	if out != asText {
		v := upView{
			r.Cluster, r.Release, err == nil && o.Wait > 0, r.Changed, r.Steps, r.Kubeconfig, r.Server, r.Elapsed.Round(time.Millisecond).String(),
			"",
			[]milestoneView{},
			r.Unready,
		}
		if r.Built > 0 {
			v.Built = r.Built.Round(time.Millisecond).String()
		}
		for _, m := range r.Milestones {
			v.Milestones = append(v.Milestones, milestoneView{m.Name, m.At.Round(time.Millisecond).String()})
		}
		return errors.Join(out.object(e.Out, "UpResult", v), err)
	}
	if timedOut {
		fmt.Fprintf(e.Err, "\nNot ready:\n")
		reasons(e.Err, r.Unready, "", time.Now())
		fmt.Fprintln(e.Err)
		return err
	}
	upText(e.Out, r, o)
	return nil
}

func upText(w io.Writer, r bootstrap.Result, o bootstrap.UpOptions) {
	took := fmt.Sprintf("%.2f s", (r.Elapsed - r.Built).Seconds()) // the build has a separate line
	switch {
	case !r.Changed && o.Wait == 0:
		fmt.Fprintf(w, "cluster %s is unchanged (%s); to wait until it is ready, run %s\n", r.Cluster, took, withName("wait", r.Cluster))
		if len(r.Unready) > 0 {
			fmt.Fprintf(w, "\nNot ready:\n")
			reasons(w, r.Unready, "", time.Now())
		}
		return
	case !r.Changed:
		fmt.Fprintf(w, "cluster %s is up to date: Kubernetes %s, nothing to do (%s)\n", r.Cluster, r.Release, took)
		return
	case o.Wait == 0:
		fmt.Fprintf(w, "cluster %s is starting; to wait until it is ready, run %s\n", r.Cluster, withName("wait", r.Cluster))
	default:
		fmt.Fprintf(w, "cluster %s is ready: Kubernetes %s, %s in %s\n", r.Cluster, r.Release, report.Count(r.Steps, "step"), took)
	}
	if len(r.Milestones) > 0 || r.Built > 0 {
		fmt.Fprintln(w)
	}
	if r.Built > 0 {
		fmt.Fprintf(w, "  %-22s %s\n", "components built", minutes(r.Built))
	}
	for _, m := range r.Milestones {
		fmt.Fprintf(w, "  %-22s %6.2f s\n", m.Name, m.At.Seconds())
	}
	if r.Kubeconfig != "" {
		fmt.Fprintf(w, "\nkubeconfig: %s\n", r.Kubeconfig)
	}
	fmt.Fprintf(w, "\nNext steps:\n")
	kubectl := "slipway kubectl get pods -A"
	if r.Cluster != defaultName {
		kubectl = "slipway kubectl --name " + r.Cluster + " get pods -A"
	}
	for _, next := range []string{kubectl, withName("status", r.Cluster), withName("down", r.Cluster)} {
		fmt.Fprintf(w, "  %s\n", next)
	}
}

// minutes formats a duration of seconds or minutes: "36 s", "6 min 36 s".
func minutes(d time.Duration) string {
	d = d.Round(time.Second)
	if d < time.Minute {
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
}

func isTimeout(err error) bool {
	var known *report.Error
	return errors.As(err, &known) && known.Kind == report.TimedOut
}

func down(e Env) *cobra.Command {
	var name string
	var out format
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Delete a local cluster",
		Long: `Delete a local cluster with all its processes, mounts, namespaces, cgroups and files, without asking for confirmation.
The component store is kept, so that the next slipway up takes seconds; --purge deletes it, too.

For a cluster of existing machines (slipway apply), down only deletes the files of the cluster on this host. Remove
and reset the machines first.`,
		Example: `  slipway down
  slipway down --name test
  slipway down --purge       # delete the built components, too`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	outputFlag(cmd, &out)
	purge := cmd.Flags().Bool("purge", false, "delete the component store, too, unless another cluster uses it")
	keep := cmd.Flags().Bool("keep-store", true, "keep the component store (the default; see --purge)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("keep-store") && cmd.Flags().Changed("purge") && *keep == *purge {
			return usageError{errors.New("use one of --keep-store and --purge")}
		}
		drop := *purge || !*keep
		names, err := e.Inventory.Dir.Clusters()
		if err != nil {
			return err
		}
		exists := slices.Contains(names, name)
		if !exists && !drop && out != asText {
			return out.object(e.Out, "DownResult", downView{Cluster: name})
		}
		if !exists && !drop {
			fmt.Fprintf(e.Out, "nothing to delete: there is no cluster %s%s\n", name, others(names))
			return nil
		}
		far, err := e.Inventory.IsRemote(name)
		if err != nil {
			return err
		}
		machines, err := machineCount(cmd, e, name, exists)
		if err != nil {
			return err
		}
		err = showing(cmd.Context(), e, out, func(report func(report.Event)) error {
			return bootstrap.Down(cmd.Context(), *e.Inventory, name, drop, report)
		})
		if cmd.Context().Err() != nil {
			return interruptedError("interrupted before everything was deleted: run " + withName("down", name) + " again")
		}
		if err != nil {
			return err
		}
		if out != asText {
			return out.object(e.Out, "DownResult", downView{name, exists, machines, drop})
		}
		switch {
		case far:
			fmt.Fprintf(e.Out, "removed cluster %s from this host; its %s were not changed\n", name, report.Count(machines, "machine"))
			return nil
		case exists:
			fmt.Fprintf(e.Out, "deleted cluster %s: %s with all processes, mounts, networks and files\n", name, report.Count(machines, "machine"))
		}
		if drop {
			fmt.Fprintln(e.Out, "deleted the component store")
		}
		return nil
	}
	return cmd
}

// downView is the JSON and YAML result of down.
type downView struct {
	Cluster      string `json:"cluster"`
	Removed      bool   `json:"removed"` // false: the cluster did not exist
	Machines     int    `json:"machines"`
	StoreRemoved bool   `json:"storeRemoved"`
}

func machineCount(cmd *cobra.Command, e Env, name string, exists bool) (int, error) {
	if !exists {
		return 0, nil
	}
	machines, err := e.Inventory.Names(cmd.Context(), name)
	return len(machines), err
}

func others(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return " (existing clusters: " + strings.Join(names, ", ") + ")"
}

func wait(e Env) *cobra.Command {
	var o operate.WaitOptions
	var out format
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until a cluster or a node is ready",
		Long: `Wait until a cluster or one of its nodes is ready. When the timeout expires, wait shows what is not ready and why, and
exits with code 5. Wait changes nothing: the cluster continues to start.`,
		Example: `  slipway wait                                # the whole cluster
  slipway wait --for=node/dev-main-0
  slipway wait --for=cluster --timeout 30s --name test`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &o.Cluster)
	cmd.Flags().StringVar(&o.For, "for", "cluster", "what to wait for: cluster, or node/NAME")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 5*time.Minute, "how long to wait")
	outputFlag(cmd, &out)
	_ = cmd.RegisterFlagCompletionFunc("for", waitTargets(e))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		node, isNode := strings.CutPrefix(o.For, "node/")
		if o.For != "cluster" && (!isNode || node == "") {
			return usageError{fmt.Errorf("--for %q: use cluster or node/NAME", o.For)}
		}
		if o.Timeout <= 0 {
			return usageError{errors.New("--timeout must be greater than zero")}
		}
		begun := time.Now()
		var unready []operate.UnreadyItem
		err := showing(cmd.Context(), e, out, func(report func(report.Event)) (err error) {
			o.Report = report
			unready, err = operate.Wait(cmd.Context(), *e.Inventory, o)
			return err
		})
		if out != asText && (err == nil || isTimeout(err)) {
			v := waitView{o.Cluster, o.For, err == nil, time.Since(begun).Round(time.Millisecond).String(), unready}
			return errors.Join(out.object(e.Out, "WaitResult", v), err)
		}
		if err == nil {
			fmt.Fprintf(e.Out, "%s is ready (%s)\n", o.Subject(), ago(time.Since(begun)))
			return nil
		}
		if isTimeout(err) {
			items := make([]reconcile.Status, 0, len(unready))
			for _, u := range unready {
				items = append(items, u.Status)
			}
			fmt.Fprintf(e.Err, "Not ready:\n")
			reasons(e.Err, items, "", time.Now())
		}
		return err
	}
	return cmd
}

// waitView is the JSON and YAML result of wait.
type waitView struct {
	Cluster string                `json:"cluster"`
	For     string                `json:"for"`
	Ready   bool                  `json:"ready"`
	Elapsed string                `json:"elapsed"`
	Unready []operate.UnreadyItem `json:"unready,omitempty"`
}
