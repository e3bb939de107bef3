// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// podLogs finds the logs of a machine's components that run as static pods: of each container the latest start, by component. A pod
// that was replaced has left another folder; the newer one counts.
func podLogs(folder, machine string) map[string]string {
	logs, newest := map[string]string{}, map[string]time.Time{}
	pods, err := filepath.Glob(filepath.Join(folder, "kube-system_*-"+machine+"_*"))
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

// latestLog is the log of a container's latest start: 0.log, 1.log and so on.
func latestLog(folder string) (path string, at time.Time) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return "", time.Time{}
	}
	latest := -1
	for _, e := range entries {
		number, isLog := strings.CutSuffix(e.Name(), ".log")
		n, err := strconv.Atoi(number)
		info, gone := e.Info()
		if isLog && err == nil && gone == nil && n > latest {
			latest, path, at = n, filepath.Join(folder, e.Name()), info.ModTime()
		}
	}
	return path, at
}
