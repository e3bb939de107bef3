// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/durable"
)

// Source says where a spec comes from.
type Source struct {
	Name    string     // the cluster; "" leaves it to the spec
	File    string     // "" means: the one kept from the last up, or else the default spec; "-" is standard input
	Version string     // overrides spec.kubernetesVersion; "" leaves it
	Shape   spec.Shape // other counts of machines than the kept or default spec has; never with a File
}

// Load reads, checks and completes a spec. All problems come at once, as an Error of kind InvalidSpec.
func (l *Launcher) Load(s Source) (Cluster, error) {
	file, text, err := l.read(s)
	if err != nil {
		return Cluster{}, err
	}
	if s.File == "" && s.Version == "" {
		if s.Version, err = l.keptVersion(s.Name); err != nil {
			return Cluster{}, err
		}
	}
	c, err := complete(file, text, s)
	if err != nil {
		return Cluster{}, err
	}
	before, err := l.storedPlacement(c.Name)
	if err != nil {
		return Cluster{}, err
	}
	c.Config = compose.Place(c.Config, before)
	return c, nil
}

// Complete checks and completes a spec's text. The version, if not empty, is taken instead of the spec's.
func Complete(file string, text []byte, version string) (Cluster, error) {
	c, err := complete(file, text, Source{Version: version})
	c.Config = compose.Place(c.Config, nil)
	return c, err
}

// complete leaves the placement of units to the caller.
func complete(file string, text []byte, s Source) (Cluster, error) {
	complete, release, problems, err := compose.Cluster(file, text, compose.Options{Name: s.Name, Version: s.Version})
	switch {
	case err != nil:
		return Cluster{}, &Error{InvalidSpec, err}
	case len(problems) > 0:
		return Cluster{}, invalid(problems)
	}
	return Cluster{Name: complete.Name, Config: complete, Release: release, Spec: text}, nil
}

func (l *Launcher) read(s Source) (file string, text []byte, err error) {
	switch s.File {
	case "-":
		text, err = readBounded(os.Stdin)
		return "stdin", text, err
	case "":
		text, err = os.ReadFile(l.specFile(s.Name))
		if !s.Shape.IsZero() && (err == nil || errors.Is(err, fs.ErrNotExist)) { // text is nil when nothing is kept
			if text, err = spec.WithShape(text, s.Name, s.Shape); err != nil {
				return "", nil, &Error{InvalidSpec, err}
			}
			return l.specFile(s.Name), text, nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			return "default", []byte("apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata:\n  name: " + s.Name + "\n"), nil
		}
		return l.specFile(s.Name), text, err
	}
	f, err := os.Open(s.File)
	if err != nil {
		return "", nil, fmt.Errorf("read spec: %w", err)
	}
	defer f.Close()
	text, err = readBounded(f)
	return s.File, text, err
}

func (l *Launcher) specFile(name string) string {
	return filepath.Join(l.clusterDir(name), "cluster.yaml")
}

// keepSpec remembers what the user wrote, for the next up, plan and why.
func (l *Launcher) keepSpec(c Cluster) error {
	if err := os.MkdirAll(l.clusterDir(c.Name), 0o700); err != nil {
		return fmt.Errorf("keep spec: %w", err)
	}
	if err := durable.WriteFile(l.versionFile(c.Name), 0o600, []byte(c.Release.Minor()+"\n")); err != nil {
		return fmt.Errorf("keep version: %w", err)
	}
	if err := l.storePlacement(c); err != nil {
		return err
	}
	return durable.WriteFile(l.specFile(c.Name), 0o600, c.Spec)
}

// keptVersion is the minor that the cluster was made with: a spec that names none must not upgrade it by itself one day.
func (l *Launcher) keptVersion(name string) (string, error) {
	text, err := os.ReadFile(l.versionFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(text)), err
}

func (l *Launcher) versionFile(name string) string {
	return filepath.Join(l.clusterDir(name), "kubernetes-version")
}

// ProblemsError is everything that is wrong with a spec. It comes in an Error of kind InvalidSpec.
type ProblemsError []spec.Problem

// Error has a line per problem.
func (e ProblemsError) Error() string {
	lines := make([]string, 0, len(e))
	for _, p := range e {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

func invalid(problems []spec.Problem) error { return &Error{InvalidSpec, ProblemsError(problems)} }
