// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/bootstrap"
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
