// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const execLimit = 6 * time.Minute

// Exec runs a shell command in the machine and returns its output.
func (c *Cluster) Exec(command string) string {
	c.T.Helper()
	return c.ExecIn(nil, command)
}

// ExecIn is Exec with standard input.
func (c *Cluster) ExecIn(in io.Reader, command string) string {
	c.T.Helper()
	r := c.TryExec(in, command)
	if r.Code != 0 {
		c.T.Fatalf("in the machine: %s", r)
	}
	return r.Out
}

// TryExec is ExecIn that may fail.
func (c *Cluster) TryExec(in io.Reader, command string) Result {
	c.T.Helper()
	return run(c.T, execLimit, in, c.Bin, "exec", "--name", c.Name, c.Node, "--", "sh", "-c", command)
}

// Folder is the host's path of the machine's folder.
func (c *Cluster) Folder() string { return filepath.Join(Root, "machines", c.Name, c.Node) }

// Data is the host's path of a folder that the machine keeps, such as "etc-kubernetes" or "log".
func (c *Cluster) Data(elem ...string) string {
	return filepath.Join(append([]string{c.Folder(), "data"}, elem...)...)
}

// Read returns a file of Data.
func (c *Cluster) Read(elem ...string) []byte {
	c.T.Helper()
	text, err := os.ReadFile(c.Data(elem...))
	if err != nil {
		c.T.Fatal(err)
	}
	return text
}

// Process is a process of the machine, seen from the host.
type Process struct {
	PID    int // on the host
	Parent int // on the host
	Inside int // in the machine
	Exe    string
	Args   []string
}

// Processes lists what runs in the machine, its pods included.
func (c *Cluster) Processes() []Process {
	c.T.Helper()
	found := c.processes()
	if len(found) == 0 {
		c.T.Fatalf("nothing runs in %s", c.Node)
	}
	return found
}

func (c *Cluster) processes() (found []Process) {
	mine := filepath.Join("/", c.Name, c.Node)
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		cgroup, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil || !strings.Contains(string(cgroup)+"\n", mine+"/") && !strings.Contains(string(cgroup), mine+"\n") {
			continue
		}
		if p, err := process(dir); err == nil { // it may have ended since
			found = append(found, p)
		}
	}
	return found
}

func process(dir string) (p Process, err error) {
	if p.PID, err = strconv.Atoi(filepath.Base(dir)); err != nil {
		return p, err
	}
	if p.Exe, err = os.Readlink(filepath.Join(dir, "exe")); err != nil {
		return p, err
	}
	line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return p, err
	}
	p.Args = strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return p, err
	}
	for line := range strings.Lines(string(status)) {
		if parent, ok := strings.CutPrefix(line, "PPid:"); ok {
			p.Parent, err = strconv.Atoi(strings.TrimSpace(parent))
		}
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			if f := strings.Fields(ids); len(f) > 1 {
				p.Inside, err = strconv.Atoi(f[1])
			}
		}
	}
	return p, err
}

// Process finds the one process whose program has this name. A test that kills it kills nothing else.
func (c *Cluster) Process(program string, args ...string) Process {
	c.T.Helper()
	p, err := c.TryProcess(program, args...)
	if err != nil {
		c.T.Fatal(err)
	}
	return p
}

// TryProcess is Process of a machine that may just be starting.
func (c *Cluster) TryProcess(program string, args ...string) (Process, error) {
	var found []Process
	for _, p := range c.processes() {
		if filepath.Base(p.Args[0]) == program && len(p.Args) > len(args) && strings.Join(p.Args[1:1+len(args)], " ") == strings.Join(args, " ") {
			found = append(found, p)
		}
	}
	if len(found) > 1 { // a child of the one that has not become another program yet
		found = slices.DeleteFunc(found, func(p Process) bool {
			return slices.ContainsFunc(found, func(q Process) bool { return p.Parent == q.PID })
		})
	}
	if len(found) != 1 {
		return Process{}, fmt.Errorf("processes %s %v in %s: %v, want one", program, args, c.Node, found)
	}
	return found[0], nil
}

// Kill sends SIGKILL to a process of the machine.
func (c *Cluster) Kill(p Process) {
	c.T.Helper()
	if err := unix.Kill(p.PID, unix.SIGKILL); err != nil {
		c.T.Fatalf("kill %s: %v", p.Args[0], err)
	}
}

// Files walks a folder of the host and hands over every regular file that is still there when it is looked at.
func Files(t testing.TB, dir string, each func(path string, info fs.FileInfo)) {
	t.Helper()
	walk(t, dir, func(fs.FileInfo) bool { return true }, each)
}

// OpenFiles walks what everybody may reach: it enters only folders that let others pass. dir itself is entered.
func OpenFiles(t testing.TB, dir string, each func(path string, info fs.FileInfo)) {
	t.Helper()
	walk(t, dir, func(folder fs.FileInfo) bool { return folder.Mode()&0o001 != 0 }, each)
}

func walk(t testing.TB, dir string, enter func(folder fs.FileInfo) bool, each func(path string, info fs.FileInfo)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := e.Info()
		switch {
		case os.IsNotExist(err): // gone since
			return nil
		case err != nil:
			return err
		case e.IsDir() && path != dir && !enter(info):
			return fs.SkipDir
		case e.Type().IsRegular():
			each(path, info)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
