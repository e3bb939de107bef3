// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// process identifies a process of a pod. The zero value means none.
type process struct {
	pid   int
	start uint64 // clock ticks since boot; together with the PID it is unique
	comm  string
}

// maxComm is the length to which the kernel truncates process names.
const maxComm = 15

// component finds the component's main process among the processes of its pod, by name. A pod also has the
// pause process and, briefly, container runtime processes.
func component(name string, all []process) (process, bool) {
	i := slices.IndexFunc(all, func(p process) bool { return p.comm == name[:min(len(name), maxComm)] })
	if i < 0 {
		return process{}, false
	}
	return all[i], true
}

// processes returns the processes of the pods with the given UIDs, oldest first.
func (m *Manager) processes(uids ...string) (map[string][]process, error) {
	entries, err := os.ReadDir(m.conf.Proc)
	if err != nil {
		return nil, err
	}
	found := map[string][]process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		groups, err := os.ReadFile(filepath.Join(m.conf.Proc, e.Name(), "cgroup"))
		if err != nil {
			continue // it has exited
		}
		i := slices.IndexFunc(uids, func(uid string) bool { return uid != "" && strings.Contains(string(groups), "pod"+uid) })
		if i < 0 {
			continue
		}
		if comm, start, alive := m.stat(pid); alive {
			found[uids[i]] = append(found[uids[i]], process{pid, start, comm})
		}
	}
	for _, list := range found {
		slices.SortFunc(list, func(a, b process) int {
			return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.pid, b.pid))
		})
	}
	return found, nil
}

// isAlive reports whether the process still runs.
func (m *Manager) isAlive(p process) bool {
	if p.pid == 0 {
		return false
	}
	comm, start, alive := m.stat(p.pid)
	return alive && start == p.start && comm == p.comm
}

// stat reads /proc/PID/stat: "7 (etcd) S … start …". Zombies are not alive.
func (m *Manager) stat(pid int) (comm string, start uint64, alive bool) {
	data, err := os.ReadFile(filepath.Join(m.conf.Proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", 0, false
	}
	before, after, ok := strings.Cut(string(data), "(")
	end := strings.LastIndexByte(after, ')')
	if !ok || before == "" || end < 0 {
		return "", 0, false
	}
	fields := strings.Fields(after[end+1:])
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", 0, false
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return after[:end], start, err == nil
}

// ticks is the number of clock ticks per second in /proc, which is the same on every Linux that Go
// supports.
const ticks = 100

// since returns the start time of a process, or the zero time if it is unknown.
func (m *Manager) since(p process) time.Time {
	data, err := os.ReadFile(filepath.Join(m.conf.Proc, "stat"))
	if err != nil || p.pid == 0 {
		return time.Time{}
	}
	for line := range strings.Lines(string(data)) {
		if boot, ok := strings.CutPrefix(line, "btime "); ok {
			seconds, err := strconv.ParseInt(strings.TrimSpace(boot), 10, 64)
			if err != nil {
				return time.Time{}
			}
			return time.Unix(seconds, 0).Add(time.Duration(p.start) * time.Second / ticks)
		}
	}
	return time.Time{}
}

// restarts returns the number of container starts after the first, which is the number of its latest log,
// and the last line of the previous container's log.
func (m *Manager) restarts(p pod) (n int, last string) {
	dirs, err := filepath.Glob(filepath.Join(m.conf.Logs, "*_"+p.uid, p.item.Name))
	if err != nil || len(dirs) == 0 {
		return 0, ""
	}
	entries, err := os.ReadDir(dirs[0])
	if err != nil {
		return 0, ""
	}
	for _, e := range entries {
		number, isLog := strings.CutSuffix(e.Name(), ".log")
		if i, err := strconv.Atoi(number); isLog && err == nil {
			n = max(n, i)
		}
	}
	latest := n
	if m.isAlive(p.main) {
		latest--
	}
	if latest < 0 {
		return n, ""
	}
	return n, lastLine(filepath.Join(dirs[0], fmt.Sprintf("%d.log", latest)))
}

const (
	tailBytes = 4 << 10
	maxLine   = 160
)

// lastLine returns the last line of a container's log without the kubelet's prefix of time, stream and
// tag.
func lastLine(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close() // read only
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	buf := make([]byte, tailBytes)
	n, _ := f.ReadAt(buf, max(0, info.Size()-tailBytes))
	lines := strings.Split(strings.TrimSpace(string(buf[:n])), "\n")
	last := lines[len(lines)-1]
	if words := strings.SplitN(last, " ", 4); len(words) == 4 {
		last = words[3]
	}
	return strings.ToValidUTF8(last[:min(len(last), maxLine)], "")
}
