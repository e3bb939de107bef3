// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/report"
)

func bundleExport(e Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export FILE",
		Short: "Write a bundle as one file, for a host without Go or network",
		Long:  `Write a bundle as one tar file, for a host without Go or network; - writes standard output. The same bundle gives the same bytes.`,
		Example: `  slipway bundle export bundle.tar
  slipway bundle export - | ssh other slipway bundle import -`,
		Args: cobra.ExactArgs(1),
	}
	release := releaseFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := release()
		if err != nil {
			return err
		}
		write := func(w io.Writer) error { return e.Inventory.Dir.Components().Export(cmd.Context(), r, w) }
		if args[0] == "-" {
			if isTerminal(e.Out) {
				return usageError{errors.New("standard output is a terminal: name a file, or pipe it on")}
			}
			return write(e.Out)
		}
		if err := writeWhole(args[0], write); err != nil {
			return err
		}
		fmt.Fprintf(e.Out, "wrote the bundle of Kubernetes %s to %s\n", r.Kubernetes, args[0])
		return nil
	}
	return cmd
}

// writeWhole lets a file appear only when all of it is written: half a bundle must not be carried away.
func writeWhole(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already if all went well
	buffered := bufio.NewWriterSize(f, 1<<20)
	err = write(buffered)
	if err == nil {
		err = errors.Join(buffered.Flush(), f.Chmod(0o644), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func bundleImport(e Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Put an exported bundle into the component store",
		Long: `Put an exported bundle into the component store; - reads standard input. Every file is hashed before it is taken in. Hashes say
that the file is whole, not who made it: take it from somebody you trust.`,
		Example: `  slipway bundle import bundle.tar
  ssh other slipway bundle export - | slipway bundle import -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := e.In
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			var b artifact.Bundle
			err := showing(cmd.Context(), e, asText, func(report func(report.Event)) (err error) {
				b, err = e.Inventory.Dir.Components().Import(cmd.Context(), in, report)
				return err
			})
			if err != nil {
				return err
			}
			fmt.Fprintln(e.Out, bundleLine(b))
			return nil
		},
	}
	return cmd
}
