// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/bundle"
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/report"
)

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
