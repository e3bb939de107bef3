// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/operate"
	"github.com/slipway-project/slipway/internal/report"
)

func join(e Env) *cobra.Command {
	var o operate.JoinOptions
	var file string
	var known bool
	var out format
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Let the machine that this runs on join a cluster",
		Long: `Let the machine that this runs on join a cluster. Its agent keeps the request and goes on trying by itself, over reboots too, until
it is let in; --wait waits for that. slipway token create prints the token and the command line. The token is asked for, or read
from standard input or a file: on a command line every process of the machine could read it.`,
		Example: `  slipway join --endpoint 10.0.0.4:9440 --pin sha256:…            # asks for the token
  slipway join --endpoint 10.0.0.4:9440 --pin sha256:… --token-file token --wait
  slipway join --endpoint 10.0.0.4:9440 --pin sha256:… --known    # the cluster knows the machine's key`,
		Args: noArgs,
	}
	cmd.Flags().StringArrayVar(&o.Endpoints, "endpoint", nil, "ADDRESS:PORT of a join service; may be given several times")
	cmd.Flags().StringVar((*string)(&o.Pin), "pin", "", "pin of the cluster's join CA: sha256: and 64 hex digits")
	cmd.Flags().StringVar(&o.Node, "node", "", "name to ask for (default: what the cluster decides)")
	cmd.Flags().StringVar(&file, "token-file", "", "file that holds the token (default: standard input)")
	cmd.Flags().BoolVar(&known, "known", false, "no token: the cluster knows this machine's key")
	cmd.Flags().BoolVar(&o.Wait, "wait", false, "wait until the machine is in")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 5*time.Minute, "how long to wait, with --wait")
	cmd.Flags().StringVar(&o.Socket, "socket", agentclient.OwnSocket, "socket of the machine's agent")
	_ = cmd.Flags().MarkHidden("socket")
	outputFlag(cmd, &out)
	cmd.SetFlagErrorFunc(noTokenFlag)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.Check(); err != nil {
			return usageError{err}
		}
		if known && file != "" {
			return usageError{errors.New("use one of --known and --token-file")}
		}
		if !known {
			var err error
			if o.Token, err = secret(e, file, "token", "--token-file"); err != nil {
				return err
			}
		}
		return runJoin(cmd, e, out, o)
	}
	return cmd
}

// noTokenFlag explains why there is no --token, without repeating what was given for it.
func noTokenFlag(cmd *cobra.Command, err error) error {
	if strings.HasPrefix(err.Error(), "unknown flag: --token") {
		err = errors.New("there is no --token: a command line can be read by every process of the machine; " +
			"give the token on standard input or with --token-file, and revoke this one")
	}
	return usageError{fmt.Errorf("%w\nSee '%s --help'", err, cmd.CommandPath())}
}

func runJoin(cmd *cobra.Command, e Env, out format, o operate.JoinOptions) error {
	var m agentclient.Membership
	err := showing(cmd.Context(), e, out, func(report func(report.Event)) (err error) {
		o.Report = report
		m, err = operate.Join(cmd.Context(), o)
		return err
	})
	if cmd.Context().Err() != nil {
		return interruptedError("stopped; the machine's agent goes on with what it was told")
	}
	if err != nil {
		return err
	}
	in := m.Phase == lock.Committed
	switch {
	case out != asText:
		return out.object(e.Out, "JoinResult", map[string]any{"joined": in, "cluster": m.Cluster, "node": m.Node, "key": m.Key})
	case in:
		fmt.Fprintf(e.Out, "this machine is node %s of cluster %s\n", m.Node, m.Cluster)
	default:
		fmt.Fprintf(e.Out, "the machine's agent knows what to join and goes on by itself\n\nthis machine's key: %s\n", m.Key)
	}
	return nil
}

const maxSecret = 4 << 10

// secret reads what must not stand on a command line: from a file, or from standard input, where a terminal does not show it.
func secret(e Env, file, what, flag string) (string, error) {
	in := e.In
	if file != "" && file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", fmt.Errorf("read the %s: %w", what, err)
		}
		defer f.Close()
		in = f
	}
	if f, ok := in.(*os.File); ok && file == "" && term.IsTerminal(int(f.Fd())) {
		fmt.Fprintf(e.Err, "%s: ", what)
		typed, err := term.ReadPassword(int(f.Fd()))
		fmt.Fprintln(e.Err)
		if err != nil {
			return "", fmt.Errorf("read the %s: %w", what, err)
		}
		return given(string(typed), what, flag)
	}
	text, err := io.ReadAll(io.LimitReader(in, maxSecret+1))
	if err != nil {
		return "", fmt.Errorf("read the %s: %w", what, err)
	}
	if len(text) > maxSecret {
		return "", fmt.Errorf("read the %s: it is longer than %d bytes: this is none", what, maxSecret)
	}
	return given(string(text), what, flag)
}

func given(text, what, flag string) (string, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return "", usageError{fmt.Errorf("no %s: give it on standard input or with %s", what, flag)}
	}
	if strings.ContainsAny(text, " \t\r\n") {
		return "", usageError{fmt.Errorf("the %s has several words: give nothing but the %s", what, what)}
	}
	return text, nil
}
