// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/operate"
	"github.com/slipway-project/slipway/internal/report"
)

func certsCommand(e Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Show the certificates of a cluster, renew them now",
		Long: `Show until when the certificates of a cluster's nodes are valid, and renew them now. That is not needed for their sake: each is
renewed by its own node in time.`,
		Example: `  slipway certs list
  slipway certs renew --all`,
	}
	cmd.AddCommand(certsList(e), certsRenew(e))
	return cmd
}

func certsList(e Env) *cobra.Command {
	var name string
	var out format
	cmd := &cobra.Command{
		Use:   "list [NODE...]",
		Short: "List certificates, until when they are valid and when they are renewed",
		Long: `List the certificates on the disks of the named nodes, or of all, until when they are valid and when they are renewed by
themselves. As JSON it is an array of objects. The kubelets' serving certificates are the kubelets' own affair and are not listed.`,
		Example: `  slipway certs list
  slipway certs list dev-main-0
  slipway certs list --output json | jq -r 'min_by(.expires).expires'`,
		Args: cobra.ArbitraryArgs,
	}
	nameFlag(e, cmd, &name)
	outputFlag(cmd, &out)
	cmd.ValidArgsFunction = machineNames(e, &name)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		list, err := operate.Certificates(cmd.Context(), *e.Inventory, name, args)
		if err != nil && len(list) == 0 {
			return err
		}
		if out != asText {
			err = errors.Join(err, out.array(e.Out, list))
		} else {
			certsText(e.Out, list, time.Now())
		}
		return err
	}
	return cmd
}

func certsText(w io.Writer, list []agentclient.Certificate, now time.Time) {
	rows := [][]string{{"NODE", "CERTIFICATE", "SIGNER", "EXPIRES", "LEFT", "RENEWED BY ITSELF"}}
	for _, c := range list {
		row := []string{c.Node, c.Name, orDash(c.Signer), "-", "there is none that can be read", "-"}
		if !c.Expires.IsZero() {
			row[3], row[4] = c.Expires.Format(time.DateOnly), days(c.Expires.Sub(now))
		}
		if !c.Renewed.IsZero() {
			row[5] = c.Renewed.Format(time.DateOnly)
		}
		rows = append(rows, row)
	}
	table(w, rows)
}

// days is the rest of a certificate's life as a table shows it.
func days(d time.Duration) string {
	switch {
	case d < 0:
		return "expired"
	case d < 48*time.Hour:
		return ago(d)
	}
	return fmt.Sprintf("%d days", int(d/(24*time.Hour)))
}

func certsRenew(e Env) *cobra.Command {
	var name string
	var all bool
	var certs []string
	var out format
	cmd := &cobra.Command{
		Use:   "renew (--all | NODE...)",
		Short: "Renew certificates now",
		Long: `Issue certificates anew, with new keys, on the named nodes or on all, one node after the other, and wait until each is ready
again. What reads its certificates again by itself goes on without a restart; what does not is restarted once, and of several control
planes one at a time. CAs, the service-account key and the encryption key stay. Clients with a copy of a certificate, such as
slipway kubeconfig writes, go on until that one expires.`,
		Example: `  slipway certs renew --all
  slipway certs renew dev-main-0
  slipway certs renew dev-main-0 --cert apiserver --cert etcd-peer`,
		Args: cobra.ArbitraryArgs,
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().BoolVar(&all, "all", false, "on all nodes")
	cmd.Flags().StringArrayVar(&certs, "cert", nil, "only this certificate (repeatable; see slipway certs list)")
	outputFlag(cmd, &out)
	cmd.ValidArgsFunction = machineNames(e, &name)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if all == (len(args) > 0) {
			return usageError{errors.New("name the nodes whose certificates are renewed, or all of them with --all")}
		}
		last := ""
		done, err := operate.RenewCertificates(cmd.Context(), *e.Inventory, name, args, certs, func(node, what string) {
			if line := node + ": " + oneLine(what); line != last {
				fmt.Fprintln(e.Err, "  "+line)
				last = line
			}
		})
		if cmd.Context().Err() != nil {
			return interruptedError("stopped; what was begun on a node goes on there")
		}
		if out != asText {
			return errors.Join(err, out.array(e.Out, done))
		}
		for _, r := range done {
			restarted := "nothing was restarted"
			if len(r.Units) > 0 {
				restarted = "restarted " + strings.Join(r.Units, ", ")
			}
			fmt.Fprintf(e.Out, "%s: %s renewed, %s\n", r.Node, report.Count(len(r.Names), "certificate"), restarted)
		}
		return err
	}
	return cmd
}
