// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/operate"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/report"
)

func wait(e Env) *cobra.Command {
	var o operate.WaitOptions
	var out format
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until a cluster or a node is ready",
		Long: `Wait until a cluster or one node of it is ready. It changes nothing. After the time limit it tells what is not ready and
why, and exits with 5; the cluster goes on coming up by itself.`,
		Example: `  slipway wait                                # the whole cluster
  slipway wait --for=node/dev-main-0
  slipway wait --for=cluster --timeout 30s --name test`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &o.Cluster)
	cmd.Flags().StringVar(&o.For, "for", "cluster", "cluster, or node/NAME")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 5*time.Minute, "how long to wait")
	outputFlag(cmd, &out)
	_ = cmd.RegisterFlagCompletionFunc("for", waitTargets(e))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		node, isNode := strings.CutPrefix(o.For, "node/")
		if o.For != "cluster" && (!isNode || node == "") {
			return usageError{fmt.Errorf("--for %q: use cluster or node/NAME", o.For)}
		}
		if o.Timeout <= 0 {
			return usageError{errors.New("--timeout: use a time above zero")}
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

// waitView is the result of wait for programs.
type waitView struct {
	Cluster string                `json:"cluster"`
	For     string                `json:"for"`
	Ready   bool                  `json:"ready"`
	Elapsed string                `json:"elapsed"`
	Unready []operate.UnreadyItem `json:"unready,omitempty"`
}
