// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/operate"
)

type versionView struct {
	Slipway  string       `json:"slipway"`
	Go       string       `json:"go"`
	Platform string       `json:"platform"`
	Releases []string     `json:"releases"`
	Cluster  *clusterView `json:"cluster,omitempty"`
}

type clusterView struct {
	Name       string `json:"name"`
	Kubernetes string `json:"kubernetes,omitempty"`
	Agent      string `json:"agent,omitempty"`
}

func version(e Env) *cobra.Command {
	var name string
	var out format
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of slipway, its releases and the cluster",
		Example: `  slipway version
  slipway version --output json`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		v := versionView{Slipway: e.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
		for _, r := range catalog.Releases() {
			v.Releases = append(v.Releases, r.Kubernetes)
		}
		if names, err := e.Inventory.Dir.Clusters(); err == nil && slices.Contains(names, name) {
			if s, err := operate.Status(cmd.Context(), *e.Inventory, name); err == nil {
				v.Cluster = clusterOf(s)
			}
		}
		if out != asText {
			return out.object(e.Out, "Version", v)
		}
		fmt.Fprintf(e.Out, "slipway   %s (%s, %s)\n", v.Slipway, v.Go, v.Platform)
		fmt.Fprintf(e.Out, "releases  %s\n", strings.Join(v.Releases, ", "))
		if v.Cluster != nil {
			fmt.Fprintf(e.Out, "cluster   %s: Kubernetes %s, agent %s\n", v.Cluster.Name, orUnknown(v.Cluster.Kubernetes), orUnknown(v.Cluster.Agent))
		}
		return nil
	}
	return cmd
}

func clusterOf(s operate.ClusterStatus) *clusterView {
	c := &clusterView{Name: s.Cluster, Kubernetes: s.Release}
	for _, m := range s.Machines {
		if m.AgentVersion != "" {
			c.Agent = m.AgentVersion
			break
		}
	}
	return c
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
