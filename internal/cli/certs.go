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
		Short: "List and renew the certificates of a cluster",
		Long: `List and renew the certificates of a cluster. Every node renews its certificates automatically before they expire;
renew does it now, for example after a key has leaked.`,
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
		Short: "List certificates with their expiry and renewal dates",
		Long: `List the certificates on the named nodes, or on all nodes, with the dates on which they expire and are renewed
automatically. The JSON output is an array of objects. Serving certificates of kubelets are not listed: the
kubelets manage them.`,
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
	rows := [][]string{{"NODE", "CERTIFICATE", "SIGNER", "EXPIRES", "REMAINING", "AUTO-RENEWAL"}}
	for _, c := range list {
		row := []string{c.Node, c.Name, orDash(c.Signer), "-", "no readable certificate", "-"}
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

// days formats the remaining lifetime of a certificate for a table.
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
		Long: `Issue new certificates with new keys on the named nodes, or on all nodes, one node after the other, and wait until each
node is ready. Components that reload their certificates keep running. The others are restarted once, one control
plane at a time. CAs, the service account key and the encryption key are not changed. Copies of certificates that
clients have, such as the file that slipway kubeconfig writes, stay valid until they expire.`,
		Example: `  slipway certs renew --all
  slipway certs renew dev-main-0
  slipway certs renew dev-main-0 --cert apiserver --cert etcd-peer`,
		Args: cobra.ArbitraryArgs,
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().BoolVar(&all, "all", false, "renew certificates on all nodes")
	cmd.Flags().StringArrayVar(&certs, "cert", nil, "renew only this certificate (may be repeated; see slipway certs list)")
	outputFlag(cmd, &out)
	cmd.ValidArgsFunction = machineNames(e, &name)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if all == (len(args) > 0) {
			return usageError{errors.New("renew certificates: name the nodes, or use --all")}
		}
		last := ""
		done, err := operate.RenewCertificates(cmd.Context(), *e.Inventory, name, args, certs, func(node, what string) {
			if line := node + ": " + oneLine(what); line != last {
				fmt.Fprintln(e.Err, "  "+line)
				last = line
			}
		})
		if cmd.Context().Err() != nil {
			return interruptedError("interrupted; a node that has started to renew its certificates continues")
		}
		if out != asText {
			return errors.Join(err, out.array(e.Out, done))
		}
		for _, r := range done {
			restarted := "no restarts"
			if len(r.Units) > 0 {
				restarted = "restarted " + strings.Join(r.Units, ", ")
			}
			fmt.Fprintf(e.Out, "%s: renewed %s, %s\n", r.Node, report.Count(len(r.Names), "certificate"), restarted)
		}
		return err
	}
	return cmd
}
