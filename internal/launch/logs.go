// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// consoleLog names the log of what a machine's first process says before anybody listens.
const consoleLog = "machine"

// LogFile finds the log file of a component on a machine, the first one if none is named: a unit's name, "agent", or "machine"
// for its console. An unknown one is an error that lists those that exist. The machine need not run.
func (l *Launcher) LogFile(ctx context.Context, cluster, machine, component string) (path string, err error) {
	logs, err := l.LogFiles(ctx, cluster, machine)
	if err != nil {
		return "", err
	}
	if path, ok := logs[component]; ok {
		return path, nil
	}
	names := make([]string, 0, len(logs))
	for name := range logs {
		names = append(names, name)
	}
	slices.Sort(names)
	return "", fmt.Errorf("log of %q: cluster %s has logs of %s", component, cluster, strings.Join(names, ", "))
}

// LogFiles lists the log files of a machine, the first one if none is named, by component.
func (l *Launcher) LogFiles(ctx context.Context, cluster, name string) (map[string]string, error) {
	local, m, err := l.localNamed(ctx, cluster, name)
	if err != nil {
		return nil, err
	}
	logs := map[string]string{}
	dir := filepath.Join(local.DataDir(cluster, m.Name, "log"), "slipway")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list logs: %w", err)
	}
	for _, e := range entries {
		if component, ok := strings.CutSuffix(e.Name(), ".log"); ok && e.Type().IsRegular() {
			logs[component] = filepath.Join(dir, e.Name())
		}
	}
	maps.Copy(logs, podLogs(filepath.Join(local.DataDir(cluster, m.Name, "log"), "pods"), m.Name))
	logs[consoleLog] = local.Console(cluster, m.Name)
	return logs, nil
}
