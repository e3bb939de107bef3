// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/artifact"
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
