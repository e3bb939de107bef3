// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/operate"
	"github.com/slipway-project/slipway/internal/report"
)

func initCommand(e Env) *cobra.Command {
	var o bootstrap.InitOptions
	var file string
	var out format
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make a cluster on a machine that somebody else has booted",
		Long: `Make a cluster on a machine that somebody else has booted, and that runs the slipway agent: it becomes the first control plane.
The machine proves itself by its key, whose pin its console shows; you prove yourself by its init secret, which is good for once.
The machine does the work by itself: broken off at any moment, the same command takes it up again.`,
		Example: `  slipway init --server 10.0.0.4 --pin sha256:…                                  # asks for the secret
  slipway init --server 10.0.0.4 --pin sha256:… -f cluster.yaml --secret-file secret
  slipway init --server 10.0.0.4 --pin sha256:… --name prod --output json < secret`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &o.Source.Name)
	sourceFlags(cmd, &o.Source)
	cmd.Flags().Lookup("file").Usage = "cluster spec; - reads standard input (default: a cluster of this one machine)"
	cmd.Flags().Lookup("name").Usage = "name of the cluster, if no spec names it"
	cmd.Flags().StringVar(&o.Server, "server", "", "address of the machine, or ADDRESS:PORT")
	cmd.Flags().StringVar(&o.Pin, "pin", "", "pin of the machine's key: sha256: and 64 hex digits")
	cmd.Flags().StringVar(&file, "secret-file", "", "file that holds the init secret (default: standard input)")
	cmd.Flags().StringVar(&o.Node, "node", "", "which node of the spec the machine is (default: its first control plane)")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 15*time.Minute, "how long to wait until the cluster stands")
	outputFlag(cmd, &out)
	cmd.SetFlagErrorFunc(noSecretFlag)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case o.Server == "":
			return usageError{errors.New("which machine? name it with --server ADDRESS")}
		case o.Source.File == "-" && file == "":
			return usageError{errors.New("standard input cannot be both spec and secret: use --secret-file")}
		case o.Timeout <= 0:
			return usageError{errors.New("--timeout: use a time above zero")}
		}
		if err := operate.CheckPin(o.Pin); err != nil {
			return usageError{err}
		}
		if o.Source.File != "" && !cmd.Flags().Changed("name") {
			o.Source.Name = ""
		}
		var err error
		if o.Secret, err = secret(e, file, "init secret", "--secret-file"); err != nil {
			return err
		}
		return runInit(cmd, e, out, o)
	}
	return cmd
}

// noSecretFlag explains why there is no --secret, without repeating what was given for it.
func noSecretFlag(cmd *cobra.Command, err error) error {
	if strings.HasPrefix(err.Error(), "unknown flag: --secret") {
		err = errors.New("there is no --secret: a command line can be read by every process of the host; " +
			"give the secret on standard input or with --secret-file")
	}
	return usageError{fmt.Errorf("%w\nSee '%s --help'", err, cmd.CommandPath())}
}

func runInit(cmd *cobra.Command, e Env, out format, o bootstrap.InitOptions) error {
	begun := time.Now()
	var done bootstrap.Initialized
	err := showing(cmd.Context(), e, out, func(report func(report.Event)) (err error) {
		o.Report = report
		done, err = bootstrap.Init(cmd.Context(), e.Inventory.Dir, o)
		return err
	})
	if cmd.Context().Err() != nil {
		return interruptedError("stopped; the machine goes on by itself, and the same command takes it up again")
	}
	if err != nil {
		return err
	}
	if out != asText {
		return out.object(e.Out, "InitResult", done)
	}
	initText(e.Out, done, time.Since(begun))
	return nil
}

func initText(w io.Writer, done bootstrap.Initialized, took time.Duration) {
	if done.Changed {
		fmt.Fprintf(w, "cluster %s stands (%.2f s)\n\n", done.Name, took.Seconds())
	} else {
		fmt.Fprintf(w, "cluster %s has been made on this machine before\n\n", done.Name)
	}
	for _, line := range [][2]string{{"cluster id", done.Cluster}, {"node", done.Node}, {"machine's key", done.Machine}, {"API", done.Server}, {"kubeconfig", done.Kubeconfig}} {
		fmt.Fprintf(w, "  %-14s %s\n", line[0], line[1])
	}
	fmt.Fprintf(w, "\nMore machines join with a token: slipway token create, on the machine, prints it and what to do with it.\n")
}

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

func identityCommand(e Env) *cobra.Command {
	var socket string
	var out format
	cmd := &cobra.Command{
		Use:   "identity",
		Short: "Show who this machine is: the pin of its key, its address, its cluster",
		Long: `Show who the machine is that this runs on: the pin of its key, by which others know it, its address, and which cluster it belongs to.
Read the pin here, on the machine's console, and not over the network: slipway init --pin and slipway token create --key want it.`,
		Example: `  slipway identity
  slipway identity --output json | jq -r .key`,
		Args: noArgs,
	}
	socketFlag(cmd, &socket)
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		id, err := operate.Identity(cmd.Context(), socket)
		if err != nil {
			return err
		}
		if out != asText {
			return out.object(e.Out, "MachineIdentity", id)
		}
		rows := [][2]string{{"key", string(id.Key)}, {"address", cmp.Or(id.Address, "none")}, {"lock", string(id.Phase)}}
		if id.Node != "" {
			rows = append(rows, [2]string{"cluster", id.Cluster}, [2]string{"node", id.Node})
		}
		for _, r := range rows {
			fmt.Fprintf(e.Out, "%-9s %s\n", r[0], r[1])
		}
		return nil
	}
	return cmd
}

func socketFlag(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVar(socket, "socket", agentclient.OwnSocket, "socket of the machine's agent")
	_ = cmd.Flags().MarkHidden("socket")
}

func initSecretCommand(e Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init-secret",
		Short: "Make the secret with which slipway init may make a cluster on this machine",
		Long: `Make the secret with which slipway init may make a cluster on the machine that this runs on. It is good for one cluster, and for
this machine only.`,
		Example: `  slipway init-secret create
  slipway init-secret create --output json > secret.json`,
	}
	cmd.AddCommand(initSecretCreate(e))
	return cmd
}

func initSecretCreate(e Env) *cobra.Command {
	var socket string
	var replace bool
	var out format
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make an init secret on this machine",
		Long: `Make an init secret on the machine that this runs on, which belongs to nobody and whose agent runs. It is shown now and never again:
the machine keeps its hash only. Its agent waits for slipway init from then on.`,
		Example: `  slipway init-secret create
  slipway init-secret create --replace                           # the one before is worthless
  slipway init-secret create --output json | jq -r .secret`,
		Args: noArgs,
	}
	socketFlag(cmd, &socket)
	cmd.Flags().BoolVar(&replace, "replace", false, "make another one that nobody has used worthless")
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		secret, id, err := operate.CreateInitSecret(cmd.Context(), socket, e.Inventory.Dir.Root, replace)
		if err != nil {
			return err
		}
		if out != asText {
			return out.object(e.Out, "InitSecret", struct {
				Secret string `json:"secret"`
				operate.MachineIdentity
			}{secret, id})
		}
		server := cmp.Or(id.Address, "ADDRESS")
		fmt.Fprintf(e.Out, "%s\n\nThis init secret is good for one cluster on this machine, and is not shown again.\n", secret)
		fmt.Fprintf(e.Out, "Where you work from; give it the secret when it asks, or on its standard input:\n\n  slipway init --server %s --pin %s\n", server, id.Key)
		return nil
	}
	return cmd
}
