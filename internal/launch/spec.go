// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/durable"
)

// Source says where a spec comes from.
type Source struct {
	Name    string // the cluster; "" leaves it to the spec
	File    string // "" means: the one kept from the last up, or else the default spec; "-" is standard input
	Version string // overrides spec.kubernetesVersion; "" leaves it
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
	return complete(file, text, s)
}

// Complete checks and completes a spec's text. The version, if not empty, is taken instead of the spec's.
func Complete(file string, text []byte, version string) (Cluster, error) {
	return complete(file, text, Source{Version: version})
}

func complete(file string, text []byte, s Source) (Cluster, error) {
	parsed, problems := spec.Parse(file, text, spec.Options{Minors: minors(), Name: s.Name})
	if s.Version != "" {
		parsed.Minor = s.Version
	}
	release := catalog.Default()
	if v := parsed.Minor; v != "" {
		var err error
		switch release, err = catalog.Find(v); {
		case err != nil && len(problems) > 0: // without a release there is no more to find
			return Cluster{}, invalid(problems)
		case err != nil:
			return Cluster{}, &Error{InvalidSpec, err}
		}
		parsed.Minor = release.Minor() // "1.36.4" and "v1.36" name it, too
	}
	known, err := releaseFor(release)
	if err != nil {
		return Cluster{}, err
	}
	if len(problems) > 0 {
		return Cluster{}, invalid(config.Unknown(parsed, known, problems))
	}
	complete, problems := config.Complete(parsed, known)
	if len(problems) > 0 {
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

func minors() []string {
	var out []string
	for _, r := range catalog.Releases() {
		out = append(out, r.Minor())
	}
	return out
}

func releaseFor(r catalog.Release) (config.Release, error) {
	pause, err := r.Image("pause")
	if err != nil {
		return config.Release{}, err
	}
	dns, err := r.Image("coredns")
	if err != nil {
		return config.Release{}, err
	}
	known := config.Release{
		Kubernetes: r.Kubernetes, Minor: r.Minor(), PauseImage: pause.Name, CoreDNSImage: dns.Name,
		Flags: map[string]map[string]config.FlagRule{}, Fields: map[string]map[string]string{},
	}
	for _, program := range config.Programs() {
		known.Flags[program] = flagRules(r.Flags(program))
		if fields := r.Fields(program); fields != nil {
			known.Fields[program] = make(map[string]string, len(fields))
			for path, kind := range fields {
				known.Fields[program][path] = string(kind)
			}
		}
	}
	if gates := r.Gates(); gates != nil {
		known.Gates = make(map[string]config.GateRule, len(gates))
		for _, g := range gates {
			known.Gates[g.Name] = config.GateRule{Locked: g.Locked, Programs: g.Programs}
		}
	}
	return known, nil
}

// flagRules is nil where the catalogue has no table: then nothing is checked.
func flagRules(flags []catalog.Flag) map[string]config.FlagRule {
	if flags == nil {
		return nil
	}
	rules := make(map[string]config.FlagRule, len(flags))
	for _, f := range flags {
		rules[f.Name] = config.FlagRule{
			Bool: f.Kind == catalog.BoolFlag, Single: f.Kind == catalog.OneFlag,
			Int: f.Value == catalog.IntValue, Duration: f.Value == catalog.DurationValue, Deprecated: f.Deprecated, Exits: f.Exits,
		}
	}
	return rules
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
