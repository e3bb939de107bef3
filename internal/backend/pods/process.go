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

// process is a process of a pod. The zero process is none.
type process struct {
	pid   int
	start uint64 // clock ticks since boot: with the pid it is one process for ever
	comm  string
}

// longest name that the kernel keeps of a process.
const longest = 15

// component finds the component's own process among those of its pod: there are also the one that holds the pod's namespaces, and, for
// a moment, what is about to become one or the other.
func component(name string, all []process) (process, bool) {
	i := slices.IndexFunc(all, func(p process) bool { return p.comm == name[:min(len(name), longest)] })
	if i < 0 {
		return process{}, false
	}
	return all[i], true
}

// processes lists the processes of the pods with the given UIDs, oldest first.
func (k *Keeper) processes(uids ...string) (map[string][]process, error) {
	entries, err := os.ReadDir(k.conf.Proc)
	if err != nil {
		return nil, err
	}
	found := map[string][]process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		groups, err := os.ReadFile(filepath.Join(k.conf.Proc, e.Name(), "cgroup"))
		if err != nil {
			continue // it has ended
		}
		i := slices.IndexFunc(uids, func(uid string) bool { return uid != "" && strings.Contains(string(groups), "pod"+uid) })
		if i < 0 {
			continue
		}
		if comm, start, alive := k.stat(pid); alive {
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

// lives tells whether it is still the same process.
func (k *Keeper) lives(p process) bool {
	if p.pid == 0 {
		return false
	}
	comm, start, alive := k.stat(p.pid)
	return alive && start == p.start && comm == p.comm
}

// stat reads /proc/PID/stat: "7 (etcd) S … start …". A process that has ended and was not waited for is not alive.
func (k *Keeper) stat(pid int) (comm string, start uint64, alive bool) {
	data, err := os.ReadFile(filepath.Join(k.conf.Proc, strconv.Itoa(pid), "stat"))
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

// ticks per second of /proc: the same on every Linux that Go runs on.
const ticks = 100

// since is when a process began.
func (k *Keeper) since(p process) time.Time {
	data, err := os.ReadFile(filepath.Join(k.conf.Proc, "stat"))
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

// restarts counts a container's starts after the first, by the logs that the kubelet makes for each, and tells what the one before
// the latest said last.
func (k *Keeper) restarts(p pod) (n int, said string) {
	folders, err := filepath.Glob(filepath.Join(k.conf.Logs, "*_"+p.uid, p.item.Name))
	if err != nil || len(folders) == 0 {
		return 0, ""
	}
	entries, err := os.ReadDir(folders[0])
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
	if k.lives(p.main) {
		latest--
	}
	if latest < 0 {
		return n, ""
	}
	return n, lastLine(filepath.Join(folders[0], fmt.Sprintf("%d.log", latest)))
}

const (
	tail     = 4 << 10
	maxWords = 160
)

// lastLine is the last line of a container's log, without the kubelet's own words in front of it: time, stream and a mark.
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
	buf := make([]byte, tail)
	n, _ := f.ReadAt(buf, max(0, info.Size()-tail))
	lines := strings.Split(strings.TrimSpace(string(buf[:n])), "\n")
	last := lines[len(lines)-1]
	if words := strings.SplitN(last, " ", 4); len(words) == 4 {
		last = words[3]
	}
	return strings.ToValidUTF8(last[:min(len(last), maxWords)], "")
}
