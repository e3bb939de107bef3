// SPDX-License-Identifier: Apache-2.0

package operate

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/provider/ssh"
)

// consoleLog is the name under which a machine's console, which has the output of its PID 1, is shown among the logs.
const consoleLog = "machine"

// LogFile finds the log file of a component on a local machine, the first one if none is named: a unit's name, "agent", or
// "machine" for its console. The error for an unknown component lists those with a log. The machine need not be running.
func LogFile(ctx context.Context, inv inventory.Inventory, cluster, machine, component string) (path string, err error) {
	logs, err := LogFiles(ctx, inv, cluster, machine)
	if err != nil {
		return "", err
	}
	if path, ok := logs[component]; ok {
		return path, nil
	}
	return "", fmt.Errorf("log of %q: cluster %s has logs of %s", component, cluster, strings.Join(slices.Sorted(maps.Keys(logs)), ", "))
}

// LogFiles lists the log files of a local machine, the first one if none is named, by component.
func LogFiles(ctx context.Context, inv inventory.Inventory, cluster, name string) (map[string]string, error) {
	local, m, err := inv.LocalMachine(ctx, cluster, name)
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

// podLogs finds the logs of a machine's components that run as static pods: of each the latest start of the newest pod, since a
// replaced pod leaves its directory behind.
func podLogs(dir, machine string) map[string]string {
	logs, newest := map[string]string{}, map[string]time.Time{}
	pods, err := filepath.Glob(filepath.Join(dir, "kube-system_*-"+machine+"_*"))
	if err != nil {
		return nil
	}
	for _, pod := range pods {
		name, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(pod), "kube-system_"), "-"+machine+"_")
		path, at := latestLog(filepath.Join(pod, name))
		if path != "" && at.After(newest[name]) {
			logs[name], newest[name] = path, at
		}
	}
	return logs
}

// latestLog is the log of a container's latest start. The logs are called 0.log, 1.log and so on.
func latestLog(dir string) (path string, at time.Time) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", time.Time{}
	}
	latest := -1
	for _, e := range entries {
		number, isLog := strings.CutSuffix(e.Name(), ".log")
		n, err := strconv.Atoi(number)
		info, gone := e.Info()
		if isLog && err == nil && gone == nil && n > latest {
			latest, path, at = n, filepath.Join(dir, e.Name()), info.ModTime()
		}
	}
	return path, at
}

// RemoteLog writes the log of a component of a machine that is reached over SSH, the first one if none is named, as
// [ssh.Machines.Log] does.
func RemoteLog(ctx context.Context, inv inventory.Inventory, cluster, name, component string, tail int, follow bool, w io.Writer) error {
	machines, m, err := inv.Machine(ctx, cluster, name)
	if err != nil {
		return err
	}
	remote, ok := machines.(*ssh.Machines)
	switch {
	case !ok:
		return fmt.Errorf("log of %q: machine %s is on this host", component, m.Name)
	case m.Unreachable != "":
		return provider.NotRunning(cluster, m)
	}
	return remote.Log(ctx, m.Name, component, tail, follow, w)
}
