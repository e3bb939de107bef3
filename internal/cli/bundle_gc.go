// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/bundle"
)

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
