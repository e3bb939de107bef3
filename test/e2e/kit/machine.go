// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/bare"
)

// extras is the index of the first machine that the kit boots itself. Lower indexes, and so addresses, belong to the machines of specs.
const extras = 40

// Extra boots a machine in the cluster's network that is not in the spec and belongs to no cluster, and returns when its agent answers.
// Files are written to /var/lib/slipway before its first boot.
func (c *Cluster) Extra(i int, files map[string][]byte) *Cluster {
	c.T.Helper()
	m := c.Boot(i, files)
	testkit.Until(c.T, 30*time.Second, "the agent of "+m.Node+" answers", func() error {
		if r := m.TryExec(nil, "/opt/slipway/bin/slipway identity"); r.Code != 0 {
			return errors.New(r.Err)
		}
		return nil
	})
	return m
}

// Boot is like Extra, but does not wait for the agent, which may crash.
func (c *Cluster) Boot(i int, files map[string][]byte) *Cluster {
	c.T.Helper()
	local, err := machine.New(machine.Config{Root: Root, Runc: Component(c.T, "runc"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.T.Fatal(err)
	}
	name := fmt.Sprintf("%s-extra-%d", c.Name, i)
	if _, err := local.Ensure(c.T.Context(), machine.Spec{Cluster: c.Name, Name: name, Index: extras + i, Binary: c.Bin, Init: c.Init, Files: files}); err != nil {
		c.T.Fatal(err)
	}
	return c.On(name)
}

// Pin returns the pin of the machine's key, as its console shows it.
func (c *Cluster) Pin() string {
	c.T.Helper()
	pin, err := c.TryPin()
	if err != nil {
		c.T.Fatal(err)
	}
	return pin
}

// TryPin is like Pin, but returns an error while the machine has no key yet.
func (c *Cluster) TryPin() (string, error) {
	text, err := os.ReadFile(c.Data("slipway", "state", "machine.key"))
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return "", fmt.Errorf("read key of machine %s: no PEM block", c.Node)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("read key of machine %s: %w", c.Node, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return "", fmt.Errorf("read key of machine %s: got type %T", c.Node, key)
	}
	p, err := pin.OfKey(signer.Public())
	return string(p), err
}

// Bare boots a machine with systemd and an SSH server, but without slipway. The key authorized may log in as root. The host must have
// the package openssh-server.
func (c *Cluster) Bare(i int, authorized string) *Cluster {
	c.T.Helper()
	local, err := machine.New(machine.Config{Root: Root, Runc: Component(c.T, "runc"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.T.Fatal(err)
	}
	name := fmt.Sprintf("%s-bare-%d", c.Name, i)
	if err := bare.Boot(c.T.Context(), local, bare.Machine{
		Cluster: c.Name, Name: name, Index: extras + i, Binary: c.Bin, Authorized: authorized,
	}); err != nil {
		c.T.Fatal(err)
	}
	return c.On(name)
}

// Operator runs slipway in the machines' network, with its own SSH key and home directory.
type Operator struct {
	*Cluster
	who bare.Operator

	Home   string
	Public string // its public key, a line of authorized_keys
}

// NewOperator returns an operator that uses the component store of this host.
func (c *Cluster) NewOperator() Operator {
	c.T.Helper()
	who, err := bare.NewOperator(c.T.Context(), bare.Config{Home: c.T.TempDir(), Root: Root, Cluster: c.Name, Binary: c.Bin})
	if err != nil {
		c.T.Fatal(err)
	}
	return Operator{Cluster: c, who: who, Home: who.Home, Public: who.Public}
}

// Path returns the path of a file in the operator's home directory.
func (o Operator) Path(name string) string { return o.who.Path(name) }

// Slipway runs a sub-command as the operator.
func (o Operator) Slipway(args ...string) Result {
	o.T.Helper()
	line := o.who.Line(args...)
	return run(o.T, 6*time.Minute, nil, line[0], line[1:]...)
}

// Start starts a sub-command as the operator.
func (o Operator) Start(args ...string) Running {
	o.T.Helper()
	line := o.who.Line(args...)
	return start(o.T, line[0], line[1:]...)
}

// Address returns the machine's address in the cluster's network.
func (c *Cluster) Address() string {
	c.T.Helper()
	f := strings.Fields(c.Exec("ip -4 -oneline address show eth0"))
	before, _, _ := strings.Cut(f[3], "/")
	return before
}

// Failpoints builds slipway with failpoints (see cmd/slipway/failpoint_on.go) and returns the path of the binary.
func Failpoints(t testing.TB) string {
	t.Helper()
	NeedRoot(t)
	binary := filepath.Join(t.TempDir(), "slipway")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-tags", "failpoints", "-o", binary, "./cmd/slipway")
	build.Dir, build.Env = Checkout(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build slipway with failpoints: %v\n%s", err, out)
	}
	return binary
}

// ClockFile holds the error of the agent's clock, in the failpoints build. It is a file in /var/lib/slipway.
const ClockFile = "failpoint.clock"

// SetClock makes the clock of the machine's agent wrong by a duration such as "-48h"; "0h" corrects it. Other programs use the host's
// clock.
func (c *Cluster) SetClock(off string) {
	c.T.Helper()
	path := c.Data("slipway", ClockFile)
	if err := errors.Join(os.WriteFile(path+".test", []byte(off), 0o600), os.Rename(path+".test", path)); err != nil {
		c.T.Fatal(err)
	}
}

const execLimit = 6 * time.Minute

// Exec runs a shell command in the machine and returns its output.
func (c *Cluster) Exec(command string) string {
	c.T.Helper()
	return c.ExecIn(nil, command)
}

// ExecIn is like Exec with standard input.
func (c *Cluster) ExecIn(in io.Reader, command string) string {
	c.T.Helper()
	r := c.TryExec(in, command)
	if r.Code != 0 {
		c.T.Fatalf("exec in machine %s: %s", c.Node, r)
	}
	return r.Out
}

// TryExec is like ExecIn, but the command may fail.
func (c *Cluster) TryExec(in io.Reader, command string) Result {
	c.T.Helper()
	return run(c.T, execLimit, in, c.Bin, "exec", "--name", c.Name, c.Node, "--", "sh", "-c", command)
}

// Dir returns the machine's directory on the host.
func (c *Cluster) Dir() string { return filepath.Join(Root, "machines", c.Name, c.Node) }

// Data returns the path on the host of the machine's persistent data, such as "etc-kubernetes" or "log".
func (c *Cluster) Data(elem ...string) string {
	return filepath.Join(append([]string{c.Dir(), "data"}, elem...)...)
}

// Read returns the content of a file below Data.
func (c *Cluster) Read(elem ...string) []byte {
	c.T.Helper()
	text, err := os.ReadFile(c.Data(elem...))
	if err != nil {
		c.T.Fatal(err)
	}
	return text
}

// Process is a process in the machine.
type Process struct {
	PID        int // on the host
	Parent     int // on the host
	MachinePID int // in the machine
	Exe        string
	Args       []string
}

// Processes lists the processes in the machine, including those of its pods.
func (c *Cluster) Processes() []Process {
	c.T.Helper()
	found := c.processes()
	if len(found) == 0 {
		c.T.Fatalf("machine %s has no processes", c.Node)
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
		if p, err := process(dir); err == nil { // it may have exited
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
				p.MachinePID, err = strconv.Atoi(f[1])
			}
		}
	}
	return p, err
}

// Process returns the only process in the machine with this program name and first arguments. It fails the test if there is none or more
// than one.
func (c *Cluster) Process(program string, args ...string) Process {
	c.T.Helper()
	p, err := c.TryProcess(program, args...)
	if err != nil {
		c.T.Fatal(err)
	}
	return p
}

// TryProcess is like Process, but returns an error.
func (c *Cluster) TryProcess(program string, args ...string) (Process, error) {
	var found []Process
	for _, p := range c.processes() {
		if filepath.Base(p.Args[0]) == program && len(p.Args) > len(args) && strings.Join(p.Args[1:1+len(args)], " ") == strings.Join(args, " ") {
			found = append(found, p)
		}
	}
	if len(found) > 1 { // one may be a child between fork and exec
		found = slices.DeleteFunc(found, func(p Process) bool {
			return slices.ContainsFunc(found, func(q Process) bool { return p.Parent == q.PID })
		})
	}
	if len(found) != 1 {
		return Process{}, fmt.Errorf("find process %s %v in %s: got %v, want one", program, args, c.Node, found)
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

// KillMachines kills the first processes of machines (default: Node), and with them all others, as a power cut does.
func (c *Cluster) KillMachines(names ...string) {
	c.T.Helper()
	if len(names) == 0 {
		names = []string{c.Node}
	}
	s, err := c.Status()
	for _, m := range s.Machines {
		if slices.Contains(names, m.Name) && m.PID != 0 {
			c.Kill(Process{PID: m.PID, Args: []string{"PID 1 of " + m.Name}})
			names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == m.Name })
		}
	}
	if len(names) > 0 {
		c.T.Fatalf("kill machines %v: not running: %+v, %v", names, s, err)
	}
}

// Files calls each for every regular file below a directory of the host. Files that disappear meanwhile are skipped.
func Files(t testing.TB, dir string, each func(path string, info fs.FileInfo)) {
	t.Helper()
	walk(t, dir, func(fs.FileInfo) bool { return true }, each)
}

// ReachableFiles is like Files, but enters only directories that every user may enter. It always enters dir.
func ReachableFiles(t testing.TB, dir string, each func(path string, info fs.FileInfo)) {
	t.Helper()
	walk(t, dir, func(sub fs.FileInfo) bool { return sub.Mode()&0o001 != 0 }, each)
}

func walk(t testing.TB, dir string, enter func(sub fs.FileInfo) bool, each func(path string, info fs.FileInfo)) {
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
		case os.IsNotExist(err): // removed meanwhile
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

// Dial connects from the machine's network namespace, as a process in the machine does.
func (c *Cluster) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = InNetwork(filepath.Join(c.Dir(), "netns"), func() error {
		var d net.Dialer // for addresses only: resolving a name would use another thread
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// PodNetwork returns the network namespace of a process's pod, for [InNetwork].
func PodNetwork(p Process) string { return fmt.Sprintf("/proc/%d/ns/net", p.PID) }

// InNetwork runs f on a thread in the network namespace with this path. Sockets that f opens stay in that namespace.
func InNetwork(path string, f func() error) (err error) {
	onOwnThread(func() {
		var ns *os.File
		if ns, err = os.Open(path); err != nil {
			return
		}
		defer ns.Close()
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter network namespace %s: %w", path, err)
			return
		}
		err = f()
	})
	return err
}

// onOwnThread runs f on a thread that exits afterwards, so that a namespace that f enters does not leak. It never uses the process's first
// thread, which cannot exit.
func onOwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked
		if unix.Gettid() == unix.Getpid() {
			onOwnThread(f)
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}
