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
	"github.com/spf13/pflag"
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
		Short: "Create a cluster on a machine that runs the slipway agent",
		Long: `Create a cluster on a remote machine that runs the slipway agent. The machine becomes the first control plane.
Slipway authenticates the machine by the pin of its key (slipway identity), and the machine authenticates you by its
init secret (slipway init-secret create), which can be used once. You can interrupt init at any time: the machine
continues, and the same command resumes.`,
		Example: `  slipway init --server 10.0.0.4 --pin sha256:…                                  # ask for the secret
  slipway init --server 10.0.0.4 --pin sha256:… -f cluster.yaml --secret-file secret
  slipway init --server 10.0.0.4 --pin sha256:… --name prod --output json < secret`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &o.Source.Name)
	sourceFlags(cmd, &o.Source)
	cmd.Flags().Lookup("file").Usage = "cluster spec; - reads standard input (default: a cluster of one machine)"
	cmd.Flags().Lookup("name").Usage = "name of the cluster, if the spec does not name it"
	cmd.Flags().StringVar(&o.Server, "server", "", "address of the machine, or ADDRESS:PORT")
	cmd.Flags().StringVar(&o.Pin, "pin", "", "pin of the machine's key: sha256: and 64 hex digits")
	cmd.Flags().StringVar(&file, "secret-file", "", "file with the init secret (default: standard input)")
	cmd.Flags().StringVar(&o.Node, "node", "", "node of the spec that the machine becomes (default: the first control plane)")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 15*time.Minute, "how long to wait until the cluster is running")
	outputFlag(cmd, &out)
	cmd.SetFlagErrorFunc(refuseSecretFlag("secret", "pass the secret on standard input or with --secret-file"))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case o.Server == "":
			return usageError{errors.New("--server is required: use the address of the machine")}
		case o.Source.File == "-" && file == "":
			return usageError{errors.New("standard input cannot be both the spec and the secret: use --secret-file")}
		case o.Timeout <= 0:
			return usageError{errors.New("--timeout must be greater than zero")}
		}
		if err := operate.CheckPin("--pin", o.Pin); err != nil {
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

func runInit(cmd *cobra.Command, e Env, out format, o bootstrap.InitOptions) error {
	begun := time.Now()
	var done bootstrap.Initialized
	err := showing(cmd.Context(), e, out, func(report func(report.Event)) (err error) {
		o.Report = report
		done, err = bootstrap.Init(cmd.Context(), e.Inventory.Dir, o)
		return err
	})
	if cmd.Context().Err() != nil {
		return interruptedError("interrupted; the machine continues, run the same command again to resume")
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
		fmt.Fprintf(w, "cluster %s is running (%.2f s)\n\n", done.Name, took.Seconds())
	} else {
		fmt.Fprintf(w, "cluster %s is already running on this machine\n\n", done.Name)
	}
	for _, line := range [][2]string{{"cluster id", done.Cluster}, {"node", done.Node}, {"machine key", done.Machine}, {"API", done.Server}, {"kubeconfig", done.Kubeconfig}} {
		fmt.Fprintf(w, "  %-14s %s\n", line[0], line[1])
	}
	fmt.Fprintf(w, "\nTo add machines, run slipway token create on the machine, and follow its instructions.\n")
}

func join(e Env) *cobra.Command {
	var o operate.JoinOptions
	var file string
	var known bool
	var out format
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Join this machine to a cluster",
		Long: `Join this machine to a cluster. The machine's agent stores the request and retries, also after a reboot, until the
cluster admits the machine; --wait waits for that. Run slipway token create on a control plane to get a token and
the command line. Join asks for the token, or reads it from standard input or a file: a token on the command line
could be read by every process on the machine.`,
		Example: `  slipway join --endpoint 10.0.0.4:9440 --pin sha256:…            # ask for the token
  slipway join --endpoint 10.0.0.4:9440 --pin sha256:… --token-file token --wait
  slipway join --endpoint 10.0.0.4:9440 --pin sha256:… --known    # the cluster knows the machine's key`,
		Args: noArgs,
	}
	cmd.Flags().StringArrayVar(&o.Endpoints, "endpoint", nil, "ADDRESS:PORT of a join service (may be repeated)")
	cmd.Flags().StringVar((*string)(&o.Pin), "pin", "", "pin of the cluster's join CA: sha256: and 64 hex digits")
	cmd.Flags().StringVar(&o.Node, "node", "", "node name to request (default: the cluster chooses one)")
	cmd.Flags().StringVar(&file, "token-file", "", "file with the token (default: standard input)")
	cmd.Flags().BoolVar(&known, "known", false, "join without a token: the cluster knows this machine's key")
	cmd.Flags().BoolVar(&o.Wait, "wait", false, "wait until the machine has joined")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 5*time.Minute, "how long to wait, with --wait")
	cmd.Flags().StringVar(&o.Socket, "socket", agentclient.OwnSocket, "socket of the machine's agent")
	_ = cmd.Flags().MarkHidden("socket")
	outputFlag(cmd, &out)
	cmd.SetFlagErrorFunc(refuseSecretFlag("token", "pass the token on standard input or with --token-file, and revoke this one"))
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

// refuseSecretFlag is a flag error function that explains why there is no flag for a secret. It does not repeat the value.
func refuseSecretFlag(flag, advice string) func(*cobra.Command, error) error {
	return func(cmd *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) && unknown.GetSpecifiedName() == flag {
			err = fmt.Errorf("there is no --%s: every process on the machine can read a command line: %s", flag, advice)
		}
		return usageError{fmt.Errorf("%w\nSee '%s --help'", err, cmd.CommandPath())}
	}
}

func runJoin(cmd *cobra.Command, e Env, out format, o operate.JoinOptions) error {
	var m agentclient.Membership
	err := showing(cmd.Context(), e, out, func(report func(report.Event)) (err error) {
		o.Report = report
		m, err = operate.Join(cmd.Context(), o)
		return err
	})
	if cmd.Context().Err() != nil {
		return interruptedError("interrupted; the machine's agent keeps trying to join")
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
		fmt.Fprintf(e.Out, "the agent of this machine keeps trying to join; see slipway identity\n\nkey of this machine: %s\n", m.Key)
	}
	return nil
}

const maxSecret = 4 << 10

// secret reads a secret from a file, or from standard input. A terminal does not echo it. Secrets are never flags, because
// other processes can read the command line. what and flag are for messages.
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
		return "", fmt.Errorf("read the %s: it is longer than %d bytes", what, maxSecret)
	}
	return given(string(text), what, flag)
}

func given(text, what, flag string) (string, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return "", usageError{fmt.Errorf("no %s: pass it on standard input or with %s", what, flag)}
	}
	if strings.ContainsAny(text, " \t\r\n") {
		return "", usageError{fmt.Errorf("the %s contains white space: pass only the %s", what, what)}
	}
	return text, nil
}

func identityCommand(e Env) *cobra.Command {
	var socket string
	var out format
	cmd := &cobra.Command{
		Use:   "identity",
		Short: "Show the key, address and cluster of this machine",
		Long: `Show the pin of this machine's key, its address, and the cluster that it belongs to. Other machines identify this
machine by its key: read the pin on the machine's console, not over the network, and give it to
slipway init --pin or slipway token create --key.`,
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
		Short: "Manage the init secret of this machine",
		Long:  `Manage the init secret of this machine. The secret authorizes slipway init to create one cluster on this machine.`,
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
		Short: "Create an init secret on this machine",
		Long: `Create an init secret on this machine. The machine must not belong to a cluster, and its agent must be running. The
secret is shown only once: the machine stores its hash. The agent then waits for slipway init.`,
		Example: `  slipway init-secret create
  slipway init-secret create --replace                           # invalidate the previous secret
  slipway init-secret create --output json | jq -r .secret`,
		Args: noArgs,
	}
	socketFlag(cmd, &socket)
	cmd.Flags().BoolVar(&replace, "replace", false, "invalidate and replace an unused secret")
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
		fmt.Fprintf(e.Out, "%s\n\nThis init secret creates one cluster on this machine. It is not shown again.\n", secret)
		fmt.Fprintf(e.Out, "\nNext step, on your computer (enter the secret when asked, or pass it on standard input):\n\n  slipway init --server %s --pin %s\n", server, id.Key)
		return nil
	}
	return cmd
}
