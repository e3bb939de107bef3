// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/operate"
)

func tokenCommand(e Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create, list and revoke join tokens",
		Long: `Create, list and revoke join tokens. A token admits one machine, once, within 15 minutes at most. The pool of the token
determines the roles, labels and taints of the machine.`,
		Example: `  slipway token create --pool worker
  slipway token list
  slipway token revoke a1b2c3`,
	}
	cmd.AddCommand(tokenCreate(e), tokenList(e), tokenRevoke(e))
	return cmd
}

func tokenCreate(e Env) *cobra.Command {
	var name string
	var o operate.TokenOptions
	var out format
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a token that admits one machine",
		Long:  `Create a token that admits one machine. The token is shown only once: the cluster stores its hash.`,
		Example: `  slipway token create --pool worker
  slipway token create --pool worker --node dev-worker-7 --ttl 5m
  slipway token create --output json | jq -r .token > token`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().StringVar(&o.Pool, "pool", "", "pool of the machine (default: the only worker pool)")
	cmd.Flags().StringVar(&o.Node, "node", "", "node name that the token is valid for (default: a new name)")
	cmd.Flags().StringVar(&o.Key, "key", "", "pin of the key of the machine that may use the token: sha256: and 64 hex digits (default: any machine)")
	cmd.Flags().DurationVar(&o.TTL, "ttl", admission.MaxTTL, "how long the token is valid; at most 15 minutes")
	outputFlag(cmd, &out)
	_ = cmd.RegisterFlagCompletionFunc("node", machineNames(e, &name))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.TTL <= 0 || o.TTL > admission.MaxTTL {
			return usageError{fmt.Errorf("--ttl %s: must be greater than zero and at most %s", o.TTL, admission.MaxTTL)}
		}
		if o.Key != "" {
			if err := operate.CheckPin("--key", o.Key); err != nil {
				return usageError{err}
			}
		}
		t, err := operate.CreateToken(cmd.Context(), *e.Inventory, name, o)
		if err != nil {
			return err
		}
		if out != asText {
			return out.object(e.Out, "Token", struct {
				operate.NewToken
				Join []string `json:"join"` // the command line for the machine; it reads the token from standard input
			}{t, joinLine(t)})
		}
		tokenText(e.Out, t)
		return nil
	}
	return cmd
}

func joinLine(t operate.NewToken) []string {
	line := []string{"slipway", "join"}
	for _, a := range t.Endpoints {
		line = append(line, "--endpoint", a)
	}
	return append(line, "--pin", t.Pin)
}

func tokenText(w io.Writer, t operate.NewToken) {
	fmt.Fprintf(w, "%s\n\n", t.Token)
	fmt.Fprintf(w, "This is token %s. It admits one machine to pool %s until %s. It is not shown again.\n", t.ID, t.Pool, t.Expires.Format(time.RFC3339))
	fmt.Fprintf(w, "\nNext step, on that machine as root (enter the token when asked, or pass it on standard input):\n\n  %s\n", strings.Join(joinLine(t), " "))
}

func tokenList(e Env) *cobra.Command {
	var name string
	var out format
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the tokens of a cluster",
		Long:  `List the tokens of a cluster that are valid, used, or expired recently. The tokens themselves cannot be shown again.`,
		Example: `  slipway token list
  slipway token list --name test --output json`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		tokens, err := operate.Tokens(cmd.Context(), *e.Inventory, name)
		if err != nil {
			return err
		}
		if out != asText {
			return out.object(e.Out, "TokenList", map[string]any{"items": tokens})
		}
		tokensText(e.Out, tokens, time.Now())
		return nil
	}
	return cmd
}

func tokensText(w io.Writer, tokens []operate.Token, now time.Time) {
	if len(tokens) == 0 {
		fmt.Fprintln(w, "no tokens: create one with slipway token create")
		return
	}
	rows := [][]string{{"TOKEN", "POOL", "NODE", "STATE", "USED BY"}}
	for _, t := range tokens {
		state := "valid for " + ago(t.Expires.Sub(now))
		switch {
		case t.UsedBy != "":
			state = "used"
		case !now.Before(t.Expires):
			state = "expired"
		}
		rows = append(rows, []string{t.ID, t.Pool, orDash(t.Node), state, orDash(t.UsedBy)})
	}
	table(w, rows)
}

func tokenRevoke(e Env) *cobra.Command {
	var name string
	var out format
	cmd := &cobra.Command{
		Use:   "revoke TOKEN",
		Short: "Revoke a token",
		Long:  `Revoke a token by its ID. A machine that has already joined with it stays in the cluster: see slipway node remove.`,
		Example: `  slipway token revoke a1b2c3
  slipway token revoke a1b2c3 --name test`,
		Args: cobra.ExactArgs(1),
	}
	nameFlag(e, cmd, &name)
	outputFlag(cmd, &out)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := operate.RevokeToken(cmd.Context(), *e.Inventory, name, args[0]); err != nil {
			return err
		}
		if out != asText {
			return out.object(e.Out, "TokenRevocation", map[string]any{"id": args[0]})
		}
		fmt.Fprintf(e.Out, "token %s revoked\n", args[0])
		return nil
	}
	return cmd
}
