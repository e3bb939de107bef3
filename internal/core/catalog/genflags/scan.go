// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// candidates are names that --help may omit: hidden flags, and gates of finished features.
type candidates struct{ flags, gates []string }

var (
	hidden = regexp.MustCompile(`Mark(?:Hidden|Deprecated)\("([a-z0-9-]+)"`)
	gate   = regexp.MustCompile(`(?m)^\s*(?:const )?([A-Z]\w+)(?:\s+\w*\.?Feature)?\s+= "([A-Z]\w+)"`)
)

// ofEtcd are the flags that etcd's help omits (etcdmain/config.go). Most are from its first years and have no effect.
var ofEtcd = []string{
	"cluster-active-size", "cluster-remove-delay", "cluster-sync-interval", "config", "config-file", "force", "max-result-buffer",
	"max-retry-attempts", "peer-election-timeout", "peer-heartbeat-interval", "retry-interval", "snapshot", "v", "version", "vv",
}

// scan reads the Kubernetes packages among the dependencies of the module in dir.
func scan(ctx context.Context, dir string) (candidates, error) {
	list := exec.CommandContext(ctx, "go", "list", "-deps", "-f", "{{.ImportPath}} {{.Dir}}", "./...")
	list.Dir, list.Stderr = dir, os.Stderr
	out, err := list.Output()
	if err != nil {
		return candidates{}, fmt.Errorf("list packages: %w", err)
	}
	flags, gates := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(out)) {
		pkg, packageDir, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(pkg, "k8s.io/") {
			continue
		}
		if err := read(packageDir, flags, gates); err != nil {
			return candidates{}, err
		}
	}
	if len(flags) == 0 || len(gates) == 0 {
		return candidates{}, fmt.Errorf("the sources of %s have %d hidden flags and %d gates: update the patterns in this generator", dir, len(flags), len(gates))
	}
	return candidates{append(slices.Sorted(maps.Keys(flags)), ofEtcd...), slices.Sorted(maps.Keys(gates))}, nil
}

func read(dir string, flags, gates map[string]bool) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, m := range hidden.FindAllSubmatch(text, -1) {
			flags[string(m[1])] = true
		}
		if strings.Contains(string(text), "featuregate") || strings.Contains(file, "features") {
			for _, m := range gate.FindAllSubmatch(text, -1) {
				gates[string(m[2])] = true
			}
		}
	}
	return nil
}
