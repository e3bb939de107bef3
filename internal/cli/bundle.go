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
		Short: "Build, verify, export and import the components of a release",
		Long: `Build, list, verify, export and import the components of a release. A bundle contains everything that one Kubernetes
release needs: binaries built from source, and images made from them. Bundles are in the component store, which
is addressed by content.`,
		Example: `  slipway bundle build
  slipway bundle export bundle.tar      # on a host with Go and a module proxy
  slipway bundle import bundle.tar      # on a host without them`,
	}
	cmd.AddCommand(bundleBuild(e), bundleList(e), bundleVerify(e), bundleExport(e), bundleImport(e), bundleUnpack(e), bundleGC(e))
	return cmd
}

// releaseFlag adds --kubernetes-version. The returned function looks up the release and is called when the command runs.
func releaseFlag(cmd *cobra.Command) func() (catalog.Release, error) {
	version := cmd.Flags().String("kubernetes-version", "", "Kubernetes minor version, such as 1.36 (default: the newest)")
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
		Short: "Build the components that are missing from the component store",
		Long: `Build the components that are missing from the component store, from Go modules whose checksums are part of slipway.
You can interrupt the build at any time: components that are finished are kept.`,
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
			return interruptedError("interrupted; finished components are kept, run slipway bundle build to continue")
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
		Short: "List the files and images of each release",
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

// verifyView is the JSON and YAML result of bundle verify.
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
		Short: "Verify the digest of every file of a bundle",
		Long: `Verify the digest of every file of a bundle. Damaged files are moved aside, and slipway bundle build rebuilds them.
Slipway also verifies files whenever it uses them; this command finds damage earlier.`,
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
			return fmt.Errorf("verify bundle: %d of %s are missing or damaged: run slipway bundle build", len(bad), report.Count(len(parts), "part"))
		}
		fmt.Fprintf(e.Out, "verified %s of Kubernetes %s\n", report.Count(len(parts), "part"), r.Kubernetes)
		return nil
	}
	return cmd
}

func bundleExport(e Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export FILE",
		Short: "Export a bundle to a tar file",
		Long: `Export a bundle to a tar file, for a host without Go or without network access; - writes to standard output. The file
is reproducible: the same bundle gives the same bytes.`,
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
				return usageError{errors.New("standard output is a terminal: name a file, or pipe the output to a program")}
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

// writeWhole writes a file under a temporary name and renames it when it is complete, so that an incomplete bundle is
// never copied to another host.
func writeWhole(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // after a successful rename there is nothing to remove
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
		Short: "Import an exported bundle into the component store",
		Long: `Import an exported bundle into the component store; - reads from standard input. Slipway verifies the digest of every
file. Digests detect damage but do not prove where the bundle comes from: import only bundles from a source that
you trust.`,
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
		Use:   "unpack DIRECTORY",
		Short: "Copy the binaries of a bundle to a directory",
		Long: `Copy the binaries of a bundle to a directory and verify them. Missing components are built first. The Kubernetes
components are one binary, kube, which runs the component that its name or its first argument says.`,
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
		fmt.Fprintf(e.Out, "copied %d binaries of Kubernetes %s to %s\n", n, r.Kubernetes, args[0])
		return nil
	}
	return cmd
}

// gcView is the JSON and YAML result of bundle gc.
type gcView struct {
	FreedBytes int64    `json:"freedBytes"`
	Kept       []string `json:"kept"` // Kubernetes versions
}

func bundleGC(e Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove unused components from the component store",
		Long: `Remove components that no release of this slipway uses, such as those built by an older slipway or another version of
Go. Running clusters are not affected: they have copies of their own. To remove the whole store, remove the
clusters with slipway down --purge.`,
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
