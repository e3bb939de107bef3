// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
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
		Short: "Make, list and revoke tokens that let machines in",
		Long: `Make, list and revoke tokens. A token lets one machine in, once, within a quarter of an hour at most. Which roles, labels and
taints the machine gets is decided by the pool that the token is for, never by the machine.`,
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
		Short: "Make a token that lets one machine in",
		Long:  `Make a token that lets one machine in. It is shown now and never again: the cluster keeps its hash only.`,
		Example: `  slipway token create --pool worker
  slipway token create --pool worker --node dev-worker-7 --ttl 5m
  slipway token create --output json | jq -r .token > token`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().StringVar(&o.Pool, "pool", "", "pool of the spec that the machine becomes part of (default: the only one of workers)")
	cmd.Flags().StringVar(&o.Node, "node", "", "the only name that the token is good for (default: a new one)")
	cmd.Flags().StringVar(&o.Key, "key", "", "pin of the only machine that may use it: sha256: and 64 hex digits (default: the first that comes)")
	cmd.Flags().DurationVar(&o.TTL, "ttl", admission.MaxTTL, "how long it is good for; 15 minutes is the most")
	outputFlag(cmd, &out)
	_ = cmd.RegisterFlagCompletionFunc("node", machineNames(e, &name))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.TTL <= 0 || o.TTL > admission.MaxTTL {
			return usageError{fmt.Errorf("--ttl %s: use a time up to %s", o.TTL, admission.MaxTTL)}
		}
		if o.Key != "" {
			if err := operate.CheckPin(o.Key); err != nil {
				return usageError{errors.New(strings.Replace(err.Error(), "--pin", "--key", 1))}
			}
		}
		t, err := operate.CreateToken(cmd.Context(), *e.Inventory, name, o)
		if err != nil {
			return err
		}
		if out != asText {
			return out.object(e.Out, "Token", struct {
				operate.NewToken
				Join []string `json:"join"` // the command line, which takes the token from standard input
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
	fmt.Fprintf(w, "This is token %s. It lets one machine into pool %s until %s, and is not shown again.\n", t.ID, t.Pool, t.Expires.Format(time.RFC3339))
	fmt.Fprintf(w, "On that machine, as root; give it the token when it asks, or on its standard input:\n\n  %s\n", strings.Join(joinLine(t), " "))
}

func tokenList(e Env) *cobra.Command {
	var name string
	var out format
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the tokens of a cluster",
		Long:  `List the tokens of a cluster that are good, used, or have expired a short time ago. The tokens themselves are not known any more.`,
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
		fmt.Fprintln(w, "no tokens: make one with slipway token create")
		return
	}
	rows := [][]string{{"TOKEN", "POOL", "NODE", "STATE", "USED BY"}}
	for _, t := range tokens {
		state := "good for " + ago(t.Expires.Sub(now))
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
		Short: "Make a token worthless",
		Long:  `Make a token worthless, by its id. A machine that it has let in already stays: take that out with slipway node remove.`,
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
		fmt.Fprintf(e.Out, "token %s is worthless\n", args[0])
		return nil
	}
	return cmd
}
