// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/bundle"
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/report"
)

func bundleCommand(e Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Build, list, check and move the components of a release",
		Long: `Build, list, check and move the components of a release. A bundle is everything that one Kubernetes release needs: binaries
built from source, and images made of them. It is kept in the component store, by content.`,
		Example: `  slipway bundle build
  slipway bundle export bundle.tar      # here, with Go and a module proxy
  slipway bundle import bundle.tar      # there, with neither`,
	}
	cmd.AddCommand(bundleBuild(e), bundleList(e), bundleVerify(e), bundleExport(e), bundleImport(e), bundleUnpack(e), bundleGC(e))
	return cmd
}

// releaseFlag chooses a release of the catalogue.
func releaseFlag(cmd *cobra.Command) func() (catalog.Release, error) {
	version := cmd.Flags().String("kubernetes-version", "", "Kubernetes minor, such as 1.36 (default: the newest)")
	_ = cmd.RegisterFlagCompletionFunc("kubernetes-version", minors)
	return func() (catalog.Release, error) {
		if *version == "" {
			return catalog.Default(), nil
		}
		r, err := catalog.Find(*version)
		if err != nil {
			return r, usageError{err}
		}
		return r, nil
	}
}

func bundleBuild(e Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build what the component store does not have yet",
		Long: `Build what the component store does not have yet, from the Go modules that this program carries, checked by their sums. It may
be stopped at any moment; what is finished stays. With nothing to build it takes a fraction of a second.`,
		Example: `  slipway bundle build
  slipway bundle build --kubernetes-version 1.36`,
		Args: noArgs,
	}
	release := releaseFlag(cmd)
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := release()
		if err != nil {
			return err
		}
		var b artifact.Bundle
		err = showing(cmd.Context(), e, out, func(report func(report.Event)) (err error) {
			b, err = e.Inventory.Dir.Components().Build(cmd.Context(), r, report)
			return err
		})
		if cmd.Context().Err() != nil {
			return interruptedError("stopped; what is finished stays, and slipway bundle build goes on from there")
		}
		if err != nil {
			return err
		}
		if out != asText {
			return out.object(e.Out, "Bundle", b)
		}
		fmt.Fprintln(e.Out, bundleLine(b))
		return nil
	}
	return cmd
}

func bundleLine(b artifact.Bundle) string {
	return fmt.Sprintf("bundle of Kubernetes %s is complete: %s, %s, %s", b.Kubernetes,
		report.Count(len(b.Binaries), "file"), report.Count(len(b.Images), "image"), size(total(b)))
}

func total(b artifact.Bundle) (bytes int64) {
	for _, blob := range b.Binaries {
		bytes += blob.Size
	}
	for _, blob := range b.Images {
		bytes += blob.Size
	}
	return bytes
}

func size(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

func bundleList(e Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the files and images of each release and which are there",
		Example: `  slipway bundle list
  slipway bundle list --output yaml`,
		Args: noArgs,
	}
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var items []bundle.Part
		for _, r := range catalog.Releases() {
			parts, err := e.Inventory.Dir.Components().Parts(cmd.Context(), r)
			if err != nil {
				return err
			}
			items = append(items, parts...)
		}
		if out != asText {
			return out.object(e.Out, "PartList", map[string]any{"items": items})
		}
		rows := [][]string{{"RELEASE", "KIND", "NAME", "SIZE", "DIGEST"}}
		for _, p := range items {
			rows = append(rows, partRow(p))
		}
		table(e.Out, rows)
		return nil
	}
	return cmd
}

func partRow(p bundle.Part) []string {
	if p.Digest == "" {
		return []string{p.Release, p.Kind, p.Name, "-", "not built"}
	}
	return []string{p.Release, p.Kind, p.Name, size(p.Size), p.Digest[:19]}
}

// verifyView is the result of bundle verify for programs.
type verifyView struct {
	Release  string        `json:"release"`
	Whole    bool          `json:"whole"`
	Parts    int           `json:"parts"`
	Problems []partProblem `json:"problems"`
}

type partProblem struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Problem string `json:"problem"`
}

func bundleVerify(e Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Read every file of a bundle and compare it with its digest",
		Long: `Read every file of a bundle and compare it with its digest. A damaged one is set aside, and slipway bundle build makes it
again. Files are checked whenever they are taken from the store too; this finds damage before it is in the way.`,
		Example: `  slipway bundle verify
  slipway bundle verify || slipway bundle build`,
		Args: noArgs,
	}
	release := releaseFlag(cmd)
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := release()
		if err != nil {
			return err
		}
		parts, err := e.Inventory.Dir.Components().BuiltParts(cmd.Context(), r)
		if err != nil {
			return err
		}
		bad := []partProblem{}
		for _, p := range parts {
			if err := e.Inventory.Dir.Components().Verify(cmd.Context(), p); err != nil {
				if cmd.Context().Err() != nil {
					return cmd.Context().Err()
				}
				bad = append(bad, partProblem{p.Kind, p.Name, err.Error()})
				if out == asText {
					fmt.Fprintf(e.Out, "%s %s: %v\n", p.Kind, p.Name, err)
				}
			}
		}
		if out != asText {
			err = out.object(e.Out, "BundleVerification", verifyView{r.Kubernetes, len(bad) == 0, len(parts), bad})
			if err == nil && len(bad) > 0 {
				return exitError(exitFailed)
			}
			return err
		}
		if len(bad) > 0 {
			return fmt.Errorf("%d of %s are not as they should be: run slipway bundle build", len(bad), report.Count(len(parts), "part"))
		}
		fmt.Fprintf(e.Out, "%s of Kubernetes %s are whole\n", report.Count(len(parts), "part"), r.Kubernetes)
		return nil
	}
	return cmd
}

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

func bundleUnpack(e Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "unpack FOLDER",
		Short: "Put a bundle's binaries into a folder, under their own names",
		Long: `Put a bundle's binaries into a folder, under their own names and verified: kube (called by the name of a component, or with it as
first argument), kubectl, etcdctl, ctr and the rest. What is missing in the store is built first.`,
		Example: `  slipway bundle unpack ./bin
  slipway bundle unpack /usr/local/bin --kubernetes-version 1.36`,
		Args: cobra.ExactArgs(1),
	}
	release := releaseFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := release()
		if err != nil {
			return err
		}
		n, err := e.Inventory.Dir.Components().Unpack(cmd.Context(), r, args[0])
		if err != nil {
			return err
		}
		fmt.Fprintf(e.Out, "%d binaries of Kubernetes %s in %s\n", n, r.Kubernetes, args[0])
		return nil
	}
	return cmd
}

// gcView is the result of bundle gc for programs.
type gcView struct {
	FreedBytes int64    `json:"freedBytes"`
	Kept       []string `json:"kept"` // Kubernetes versions
}

func bundleGC(e Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove from the component store what no release of this slipway needs",
		Long: `Remove from the component store what no release of this slipway needs: what an older slipway, or another Go, has built. Running
clusters have their own copies. To remove all of it, take the clusters down with slipway down --purge.`,
		Example: `  slipway bundle gc
  slipway bundle gc --output json`,
		Args: noArgs,
	}
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		freed, kept, err := e.Inventory.Dir.Components().CollectGarbage(cmd.Context())
		none := errors.Is(err, bundle.ErrNoStore)
		switch {
		case err != nil && !none:
			return err
		case out != asText:
			return out.object(e.Out, "BundleGC", gcView{freed, append([]string{}, kept...)})
		case none:
			fmt.Fprintln(e.Out, "nothing to remove: there is no component store")
		default:
			fmt.Fprintf(e.Out, "freed %s; kept the bundle of Kubernetes %s\n", size(freed), strings.Join(kept, ", "))
		}
		return nil
	}
	return cmd
}
