// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/node/facts"
	"github.com/slipway-project/slipway/internal/node/prepare"
)

// Install fixes what it can of the findings: it sets kernel settings until the next boot, loads kernel
// modules, and installs packages in one call of the distribution's package manager. progress receives each
// command and its output, line by line. A module that cannot be loaded is not an error: the next Run
// reports it. With nothing to fix it does nothing.
func Install(ctx context.Context, findings []Finding, progress func(line string)) error {
	out := &lines{to: progress}
	err := install(ctx, prepare.Host{Root: "/", Manager: facts.PackageManager("/"), Out: out}, findings, progress)
	out.flush()
	return err
}

func install(ctx context.Context, h prepare.Host, findings []Finding, progress func(line string)) error {
	for _, s := range settings(findings) {
		progress("$ sysctl -w " + s)
		if err := h.Do(ctx, []string{"sysctls", s}); err != nil {
			return fmt.Errorf("set kernel settings: %w (try it by hand: sysctl -w %s)", err, s)
		}
	}
	for _, m := range modules(findings) {
		progress("$ modprobe " + m)
		if err := h.Do(ctx, []string{"modules", m}); err != nil {
			progress(err.Error())
		}
	}
	names := packages(findings)
	if len(names) == 0 {
		return nil
	}
	if h.Manager.Name == "" {
		return fmt.Errorf("install %s: the package manager of this distribution is unknown (install them by hand)", strings.Join(names, ", "))
	}
	if err := h.Do(ctx, []string{"packages", h.Manager.Name + "=" + strings.Join(names, ",")}); err != nil {
		return fmt.Errorf("%w (try it by hand: %s)", err, h.Manager.CommandLine(names...))
	}
	return nil
}

// Fixable lists what Install would set, load and install.
func Fixable(findings []Finding) []string {
	return slices.Concat(settings(findings), modules(findings), packages(findings))
}

func settings(findings []Finding) []string {
	var out []string
	for _, f := range Problems(findings) {
		if f.Setting != "" {
			out = append(out, f.Setting)
		}
	}
	return out
}

// modules includes those of warnings: a missing module does not prevent anything, but loading it costs
// nothing.
func modules(findings []Finding) []string {
	var out []string
	for _, f := range findings {
		if f.Module != "" && f.Severity != OK {
			out = append(out, f.Module)
		}
	}
	return out
}

func packages(findings []Finding) []string {
	var out []string
	for _, f := range Problems(findings) {
		out = append(out, strings.Fields(f.Package)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// lines is a writer that passes on whole lines.
type lines struct {
	to      func(line string)
	partial []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.partial = append(l.partial, p...)
	for {
		line, rest, ok := bytes.Cut(l.partial, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		l.to(string(line))
		l.partial = rest
	}
}

func (l *lines) flush() {
	if len(l.partial) > 0 {
		l.to(string(l.partial))
		l.partial = nil
	}
}
