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

	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/bare"
)

// extras leaves the addresses before it to the machines of specs.
const extras = 40

// Extra boots one more machine in the cluster's network that belongs to nobody, as somebody else than slipway up would, and returns
// when its agent answers. Files go to /var/lib/slipway before its first boot.
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

// Boot is Extra for a machine whose agent may fall before it answers.
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

// Pin is that of the machine's key, as its console shows it.
func (c *Cluster) Pin() string {
	c.T.Helper()
	pin, err := c.TryPin()
	if err != nil {
		c.T.Fatal(err)
	}
	return pin
}

// TryPin is Pin of a machine that may just be starting.
func (c *Cluster) TryPin() (string, error) {
	text, err := os.ReadFile(c.Data("slipway", "state", "machine.key"))
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return "", fmt.Errorf("key of machine %s: no PEM", c.Node)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("key of machine %s: %w", c.Node, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return "", fmt.Errorf("key of machine %s: %T", c.Node, key)
	}
	return roster.PinOf(signer.Public())
}

// Bare boots a machine with systemd, an SSH server of its own, and nothing of slipway, as somebody else would. The key may log in as
// root. The host must have the package openssh-server.
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

// Operator is somebody at a computer in the machines' network, with an SSH key and folders of their own.
type Operator struct {
	*Cluster
	who bare.Operator

	Home   string
	Public string // key, as in authorized_keys
}

// NewOperator has the component store of this host.
func (c *Cluster) NewOperator() Operator {
	c.T.Helper()
	who, err := bare.NewOperator(c.T.Context(), bare.Config{Home: c.T.TempDir(), Root: Root, Cluster: c.Name, Binary: c.Bin})
	if err != nil {
		c.T.Fatal(err)
	}
	return Operator{Cluster: c, who: who, Home: who.Home, Public: who.Public}
}

// Path is a file of the operator's.
func (o Operator) Path(name string) string { return o.who.Path(name) }

// Slipway runs a sub-command at the operator's computer.
func (o Operator) Slipway(args ...string) Result {
	o.T.Helper()
	line := o.who.Line(args...)
	return run(o.T, 6*time.Minute, nil, line[0], line[1:]...)
}

// Start begins a sub-command that the test wants to disturb.
func (o Operator) Start(args ...string) Running {
	o.T.Helper()
	file, err := os.CreateTemp(o.T.TempDir(), "said")
	if err != nil {
		o.T.Fatal(err)
	}
	defer file.Close()
	line := o.who.Line(args...)
	cmd := exec.Command(line[0], line[1:]...) //nolint:noctx // the test signals it, and waits for it
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		o.T.Fatal(err)
	}
	o.T.Cleanup(func() { _ = cmd.Process.Kill() })
	return Running{cmd, file.Name()}
}

// Address is the machine's in the cluster's network.
func (c *Cluster) Address() string {
	c.T.Helper()
	f := strings.Fields(c.Exec("ip -4 -oneline address show eth0"))
	before, _, _ := strings.Cut(f[3], "/")
	return before
}

// Failpoints builds slipway with failpoints: cmd/slipway/failpoint_on.go says which there are.
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

// ClockFile is what a clock is told to lie by, below /var/lib/slipway.
const ClockFile = "failpoint.clock"

// SetClock makes the clock of the machine's agent wrong by this, as "-48h"; "0h" sets it right. Other programs have the host's.
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

// Dial connects from within the machine's network, as a process there would. The host's network has no part in it.
func (c *Cluster) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = InNetwork(filepath.Join(c.Folder(), "netns"), func() error {
		var d net.Dialer // addresses, never names: looking one up would take another thread
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// PodNetwork is the network of the pod that a process belongs to, for [InNetwork].
func PodNetwork(p Process) string { return fmt.Sprintf("/proc/%d/ns/net", p.PID) }

// InNetwork runs f on a thread within the network namespace that the file names. Sockets that f opens stay there.
func InNetwork(path string, f func() error) (err error) {
	onOwnThread(func() {
		var ns *os.File
		if ns, err = os.Open(path); err != nil {
			return
		}
		defer ns.Close()
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter network %s: %w", path, err)
			return
		}
		err = f()
	})
	return err
}

// onOwnThread runs f on a thread that ends afterwards, and whatever namespace f has entered with it. The first thread of the
// process cannot end and is never used.
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
