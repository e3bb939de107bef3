// SPDX-License-Identifier: Apache-2.0

package clusterdir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/report"
)

// Cluster is a completed spec.
type Cluster struct {
	Name    string
	Config  config.Cluster
	Release catalog.Release
	Spec    []byte // what the user wrote
}

// Unplaced says of each unit that runs nowhere why.
func (c Cluster) Unplaced() []string {
	var out []string
	for _, p := range compose.Placements(c.Config) {
		if len(p.Machines) == 0 {
			out = append(out, "unit "+p.Unit+" runs nowhere: "+p.Why)
		}
	}
	return out
}

// ProblemsError is everything that is wrong with a spec. It comes in a report.Error of kind InvalidSpec.
type ProblemsError []spec.Problem

// Error has a line per problem.
func (e ProblemsError) Error() string {
	lines := make([]string, 0, len(e))
	for _, p := range e {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

// Complete checks and completes a spec's text, and places its units as if no cluster existed. The version, if not empty,
// overrides the spec's.
func Complete(file string, text []byte, version string) (Cluster, error) {
	return CompleteAs(file, text, Source{Version: version})
}

// CompleteAs is Complete with the name and the version of a source.
func CompleteAs(file string, text []byte, s Source) (Cluster, error) {
	c, err := complete(file, text, s)
	c.Config = compose.Place(c.Config, nil)
	return c, err
}

// complete leaves the placement of units to the caller.
func complete(file string, text []byte, s Source) (Cluster, error) {
	completed, release, problems, err := compose.Cluster(file, text, compose.Options{Name: s.Name, Version: s.Version})
	switch {
	case err != nil:
		return Cluster{}, &report.Error{Kind: report.InvalidSpec, Err: err}
	case len(problems) > 0:
		return Cluster{}, &report.Error{Kind: report.InvalidSpec, Err: ProblemsError(problems)}
	}
	return Cluster{Name: completed.Name, Config: completed, Release: release, Spec: text}, nil
}

// Source says where a spec comes from.
type Source struct {
	Name    string     // of the cluster; empty: the spec's
	File    string     // empty: the stored spec, or else the default spec; "-" is standard input
	Version string     // if not empty, overrides spec.kubernetesVersion
	Shape   spec.Shape // other counts of machines than in the stored or default spec; never with a File
}

// Load reads, checks and completes a spec. All problems are reported at once, as a report.Error of kind InvalidSpec.
func (d Dir) Load(s Source) (Cluster, error) {
	file, text, err := d.read(s)
	if err != nil {
		return Cluster{}, err
	}
	if s.File == "" && s.Version == "" {
		if s.Version, err = d.version(s.Name); err != nil {
			return Cluster{}, err
		}
	}
	c, err := complete(file, text, s)
	if err != nil {
		return Cluster{}, err
	}
	before, err := d.placement(c.Name)
	if err != nil {
		return Cluster{}, err
	}
	c.Config = compose.Place(c.Config, before)
	return c, nil
}

// read returns a spec's text and the name of its file for messages.
func (d Dir) read(s Source) (file string, text []byte, err error) {
	switch s.File {
	case "-":
		text, err = readSpec(os.Stdin)
		return "stdin", text, err
	case "":
		file = d.Spec(s.Name)
		text, err = os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return file, nil, err
		}
		if !s.Shape.IsZero() { // text is nil when no spec is stored
			if text, err = spec.WithShape(text, s.Name, s.Shape); err != nil {
				return "", nil, &report.Error{Kind: report.InvalidSpec, Err: err}
			}
			return file, text, nil
		}
		if err != nil {
			return "default", []byte("apiVersion: " + spec.APIVersion + "\nkind: " + spec.Kind + "\nmetadata:\n  name: " + s.Name + "\n"), nil
		}
		return file, text, nil
	}
	f, err := os.Open(s.File)
	if err != nil {
		return "", nil, fmt.Errorf("read spec: %w", err)
	}
	defer f.Close()
	text, err = readSpec(f)
	return s.File, text, err
}

const maxSpec = 1 << 20

// readSpec reads at most one byte more than a spec may have, so that the decoder can refuse it by its size.
func readSpec(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxSpec+1))
	if err != nil {
		return nil, fmt.Errorf("read spec: %w", err)
	}
	return text, nil
}

// Stored is the cluster as the stored spec describes it, in the version with which it was created. The error is fs.ErrNotExist
// when no spec is stored, which is so for a new cluster.
func (d Dir) Stored(cluster string) (Cluster, error) {
	text, err := os.ReadFile(d.Spec(cluster))
	if err != nil {
		return Cluster{}, fmt.Errorf("read the stored spec: %w", err)
	}
	version, err := d.version(cluster)
	if err != nil {
		return Cluster{}, fmt.Errorf("read the stored version: %w", err)
	}
	c, err := complete(d.Spec(cluster), text, Source{Name: cluster, Version: version})
	if err != nil {
		return Cluster{}, fmt.Errorf("read the stored spec: %w", err)
	}
	return c, nil
}

// Store stores what the user wrote, for the commands that follow. The spec is written last: it is what makes the rest valid.
func (d Dir) Store(c Cluster) error {
	if err := os.MkdirAll(d.Path(c.Name), 0o700); err != nil {
		return fmt.Errorf("store spec: %w", err)
	}
	if err := durable.WriteFile(d.versionFile(c.Name), 0o600, []byte(c.Release.Minor()+"\n")); err != nil {
		return fmt.Errorf("store version: %w", err)
	}
	if err := d.storePlacement(c); err != nil {
		return err
	}
	return durable.WriteFile(d.Spec(c.Name), 0o600, c.Spec)
}

// version is the minor with which the cluster was created. A spec without a version must not upgrade the cluster when a newer
// slipway is installed.
func (d Dir) version(cluster string) (string, error) {
	text, err := os.ReadFile(d.versionFile(cluster))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(text)), err
}

func (d Dir) versionFile(cluster string) string { return d.Path(cluster, "kubernetes-version") }

const placementSchema = 1

// placementFile records on which machines the user's units run, so that they stay there. If it is lost, they may move once.
func (d Dir) placementFile(cluster string) string { return d.Path(cluster, "placement.json") }

// placement is where the user's units run; nil for a cluster of which nothing is stored.
func (d Dir) placement(cluster string) (map[string][]string, error) {
	var before map[string][]string
	err := durable.Load(d.placementFile(cluster), placementSchema, &before)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the placement of units: %w: remove that file and its .prev to place them again", err)
	}
	return before, nil
}

// storePlacement writes nothing for a cluster that has no units and never had any.
func (d Dir) storePlacement(c Cluster) error {
	placed := compose.Placed(c.Config)
	if len(placed) == 0 {
		if before, err := d.placement(c.Name); err == nil && before == nil {
			return nil
		}
	}
	if err := durable.Save(d.placementFile(c.Name), placementSchema, placed); err != nil {
		return fmt.Errorf("store the placement of units: %w", err)
	}
	return nil
}
