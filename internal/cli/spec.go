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
		Short: "Validate, complete and explain cluster specs",
		Long: `Validate, complete and explain cluster specs. The shortest spec is

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
		Short: "Validate a spec",
		Long:  `Validate a spec and report all problems, with line, column, field and a correction. Validate changes nothing.`,
		Example: `  slipway spec validate -f cluster.yaml
  slipway spec validate -f - < cluster.yaml
  slipway spec validate --name test            # the stored spec of a cluster`,
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

// problemView is a problem of a spec in JSON and YAML.
type problemView struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// problemsObject writes the problems of a spec as the result of a command. An error that is not about the spec is
// returned unchanged.
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
		Short: "Print a spec with all defaults filled in",
		Long: `Print the completed spec: every field, and every flag of every component, with a comment that says where the value comes
from (default, derived, or user with the line). The result is a valid spec, and completing it again gives the same
output. JSON output has no comments.`,
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
		Short: "Describe a field of the spec",
		Long: `Describe a field of the spec: its meaning, its type, its default and its subfields. The prefixes "spec." and
"spec.components." may be omitted.`,
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

// specFlags adds the flags that select a spec and a cluster. With --file and without --name, the spec names the cluster.
func specFlags(e Env, cmd *cobra.Command, s *clusterdir.Source) {
	nameFlag(e, cmd, &s.Name)
	sourceFlags(cmd, s)
	cmd.Flags().Var(countFlag{&s.Shape.ControlPlanes}, "control-planes", "number of control planes: 1, 3 or 5 (default: from the stored spec; not with --file)")
	cmd.Flags().Var(countFlag{&s.Shape.Workers}, "workers", "number of workers, in a separate pool (default: from the stored spec; not with --file)")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if s.File == "" {
			return nil
		}
		if s.Shape.ControlPlanes != nil || s.Shape.Workers != nil {
			return usageError{errors.New("--control-planes and --workers change the stored spec and cannot be used with --file: set the counts in " + s.File)}
		}
		if !cmd.Flags().Changed("name") {
			s.Name = ""
		}
		return nil
	}
}

// countFlag is a number that is nil when the flag is not set.
type countFlag struct{ to **int }

func (c countFlag) String() string {
	if c.to == nil || *c.to == nil {
		return ""
	}
	return strconv.Itoa(**c.to)
}

func (countFlag) Type() string { return "number" }

// Set accepts numbers.
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
		Short: "Convert configuration of another program to a spec",
		Long:  `Convert configuration of another program to a spec and print it. Import changes nothing.`,
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
		Short: "Convert CoreOS fleet unit files to a spec",
		Long: `Convert unit files with an [X-Fleet] section to a spec whose units follow the same placement rules, and print it. Notes
name every option that is omitted. An unknown placement option is an error, because the unit would otherwise run
on any machine. For a template, pass its instances: web@1.service may be a link to web@.service.`,
		Example: `  slipway import fleet *.service > cluster.yaml
  slipway import fleet --name prod web@1.service web@2.service`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, files []string) error {
			text, notes, err := fleetSpec(name, files)
			for _, n := range notes {
				fmt.Fprintln(e.Err, "note: "+n)
			}
			if text != nil {
				_, _ = e.Out.Write(text) // checkedWriter records the error
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

// fleetSpec converts fleet unit files to a spec, and returns a note for each option that it omits. It reports the errors
// of all files together. If the result is not a valid spec, it returns the text with a report.Error of kind InvalidSpec.
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
