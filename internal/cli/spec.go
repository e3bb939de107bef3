// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/render/fleet"
	"github.com/slipway-project/slipway/internal/report"
)

func specCommand(e Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "spec",
		Short: "Check, complete and explain cluster specs",
		Long: `Check, complete and explain cluster specs. The shortest one is

  apiVersion: slipway.dev/v1alpha1
  kind: Cluster
  metadata:
    name: dev`,
		Example: `  slipway spec validate -f cluster.yaml
  slipway spec complete | grep audit
  slipway spec explain pools`,
	}
	cmd.AddCommand(validate(e), complete(e), explain(e))
	return cmd
}

func validate(e Env) *cobra.Command {
	var source clusterdir.Source
	var out format
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Find everything that is wrong with a spec",
		Long:  `Find everything that is wrong with a spec, all at once, with line, column, field and what to write instead. Touches nothing.`,
		Example: `  slipway spec validate -f cluster.yaml
  slipway spec validate -f - < cluster.yaml
  slipway spec validate --name test            # the kept spec of a cluster`,
		Args: noArgs,
	}
	specFlags(e, cmd, &source)
	outputFlag(cmd, &out)
	cmd.RunE = func(*cobra.Command, []string) error {
		c, err := e.Inventory.Dir.Load(source)
		if err != nil && out != asText {
			return problemsObject(e, out, err)
		}
		if err != nil {
			return err
		}
		nodes := 0
		for _, p := range c.Config.Pools {
			nodes += len(p.Nodes)
		}
		if out != asText {
			return out.object(e.Out, "SpecSummary", map[string]any{"cluster": c.Name, "kubernetes": c.Release.Kubernetes, "nodes": nodes})
		}
		fmt.Fprintf(e.Out, "valid: cluster %s, Kubernetes %s, %s\n", c.Name, c.Release.Kubernetes, report.Count(nodes, "node"))
		return nil
	}
	return cmd
}

// problemView is a problem of a spec for programs.
type problemView struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// problemsObject writes what is wrong with a spec as a result; an error that is not about the spec stays one.
func problemsObject(e Env, out format, err error) error {
	code := codeOf(err)
	if code != exitSpec {
		return err
	}
	views := []problemView{}
	var problems clusterdir.ProblemsError
	if errors.As(err, &problems) {
		for _, p := range problems {
			views = append(views, problemView{p.File, p.Line, p.Column, p.Path, p.Msg, p.Hint})
		}
	} else {
		views = append(views, problemView{Message: err.Error()})
	}
	if err := out.object(e.Out, "SpecProblems", map[string]any{"problems": views}); err != nil {
		return err
	}
	return exitError(code)
}

func complete(e Env) *cobra.Command {
	var source clusterdir.Source
	var out format
	cmd := &cobra.Command{
		Use:   "complete",
		Short: "Print a spec with every default filled in and every origin named",
		Long: `Print a spec with every flag of every component, each with its origin: default, derived, or user and where. The result is a
spec again; completing it gives the same bytes. JSON has no room for the origins.`,
		Example: `  slipway spec complete
  slipway spec complete -f cluster.yaml > complete.yaml
  slipway spec complete -f cluster.yaml | grep -n 'user'`,
		Args: noArgs,
	}
	specFlags(e, cmd, &source)
	outputFlag(cmd, &out)
	cmd.RunE = func(*cobra.Command, []string) error {
		c, err := e.Inventory.Dir.Load(source)
		if err != nil {
			return err
		}
		text := config.Print(c.Config)
		if out == asJSON {
			if text, err = indented(text); err != nil {
				return err
			}
		}
		_, err = e.Out.Write(text)
		return err
	}
	return cmd
}

func indented(text []byte) ([]byte, error) {
	text, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, fmt.Errorf("write spec: %w", err)
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, text, "", "  "); err != nil {
		return nil, fmt.Errorf("write spec: %w", err)
	}
	pretty.WriteByte('\n')
	return pretty.Bytes(), nil
}

func explain(e Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "explain [FIELD]",
		Short: "Tell what a field of the spec means",
		Long:  `Tell what a field of the spec means, its type, its default and the fields below it. "spec." and "spec.components." may be left out.`,
		Example: `  slipway spec explain
  slipway spec explain networking.podCIDR
  slipway spec explain apiserver.flags.secure-port`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			d, err := compose.Explain(strings.Join(args, ""))
			if err != nil {
				return usageError{err}
			}
			if out != asText {
				return out.object(e.Out, "FieldDescription", d)
			}
			fmt.Fprintln(e.Out, strings.TrimRight(d.String(), "\n"))
			return nil
		},
	}
	outputFlag(cmd, &out)
	return cmd
}

// specFlags say which spec is meant, and which cluster: the one that --name names, or else the spec's own.
func specFlags(e Env, cmd *cobra.Command, s *clusterdir.Source) {
	nameFlag(e, cmd, &s.Name)
	sourceFlags(cmd, s)
	cmd.Flags().Var(countFlag{&s.Shape.ControlPlanes}, "control-planes", "how many control planes, 1, 3 or 5, instead of what the spec says; not with --file")
	cmd.Flags().Var(countFlag{&s.Shape.Workers}, "workers", "how many workers, in a pool of their own; not with --file")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if s.File == "" {
			return nil
		}
		if s.Shape.ControlPlanes != nil || s.Shape.Workers != nil {
			return usageError{errors.New("--control-planes and --workers change the kept spec: write the counts into " + s.File + " instead")}
		}
		if !cmd.Flags().Changed("name") {
			s.Name = ""
		}
		return nil
	}
}

// countFlag is a number that may be left open.
type countFlag struct{ to **int }

func (c countFlag) String() string {
	if c.to == nil || *c.to == nil {
		return ""
	}
	return strconv.Itoa(**c.to)
}

func (countFlag) Type() string { return "number" }

// Set takes numbers only.
func (c countFlag) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil {
		return errors.New("use a number")
	}
	*c.to = &n
	return nil
}

func importCommand(e Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Make a spec of what was written for another program",
		Long:  `Make a spec of what was written for another program. It is printed; nothing is touched.`,
		Example: `  slipway import fleet *.service > cluster.yaml
  slipway import fleet --name prod web@1.service web@2.service`,
	}
	cmd.AddCommand(importFleet(e))
	return cmd
}

func importFleet(e Env) *cobra.Command {
	name := defaultName
	cmd := &cobra.Command{
		Use:   "fleet FILE...",
		Short: "Make a spec of fleet's unit files",
		Long: `Read unit files with an [X-Fleet] section and print a spec whose units do the same by the same rules. What is left out is told
with its line. An option of placement that is not known is an error: without it the unit would run anywhere. Of a template give its
instances: web@1.service, which may be a link to web@.service.`,
		Example: `  slipway import fleet *.service > cluster.yaml
  slipway import fleet --name prod web@1.service web@2.service`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, files []string) error {
			text, notes, err := fleetSpec(name, files)
			for _, n := range notes {
				fmt.Fprintln(e.Err, "note: "+n)
			}
			if text != nil {
				_, _ = e.Out.Write(text) // New's writer remembers
			}
			var problems clusterdir.ProblemsError
			if errors.As(err, &problems) {
				return fmt.Errorf("fix the spec: %w", err)
			}
			return err
		},
	}
	cmd.Flags().Var((*clusterName)(&name), "name", "name of the cluster in the spec")
	return cmd
}

// fleetSpec makes a spec of units that were written for fleet, and notes what is left out. It reports the errors of all files at
// once. A spec that needs to be fixed is returned as well, with its problems as a report.Error of kind InvalidSpec.
func fleetSpec(cluster string, files []string) (text []byte, notes []string, err error) {
	var errs []error
	var units []spec.Unit
	for _, file := range files {
		unit, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, fmt.Errorf("read unit: %w", err))
			continue
		}
		u, left, err := fleet.Decode(filepath.Clean(file), string(unit))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		notes, units = append(notes, left...), append(units, u)
	}
	if len(errs) > 0 {
		return nil, nil, errors.Join(errs...)
	}
	text = config.PrintUnits(cluster, units)
	_, err = clusterdir.Complete("the imported spec", text, "")
	return text, notes, err
}
