// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
)

const behaveArg = "hosttest-behave"

// order is the instructions of a helper process, as JSON in its arguments.
type order struct {
	Behaviour
	Dir, Name, Address string
}

// RealUnit returns a unit that runs the test binary. The test's TestMain has to call BehaveIfAsked.
func RealUnit(dir, name string, b Behaviour) plan.Unit {
	o := order{Behaviour: b, Dir: dir, Name: name, Address: "127.0.0.1:" + fmt.Sprint(freePort())}
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	u := plan.Unit{Name: name, Args: []string{self, behaveArg, string(text)}, Oneshot: b.Oneshot, StopTimeout: 5 * time.Second}
	switch u.Ready.Kind = b.Ready; b.Ready {
	case plan.ProbeHTTP:
		u.Ready.URL = "http://" + o.Address + "/"
	case plan.ProbeTCP:
		u.Ready.Address = o.Address
	case plan.ProbeFile:
		u.Ready.Path = o.path("ready")
	case plan.ProbeNone, plan.ProbeExec, plan.ProbeNotify:
	}
	return u
}

// Guarded returns a unit with a data guard, like etcd's, and the path of its data. Mark and data exist.
func Guarded(t *testing.T, dir, name string) (u plan.Unit, data string) {
	t.Helper()
	u = RealUnit(dir, name, Behaviour{Ready: plan.ProbeTCP})
	u.DataGuard = plan.DataGuard{Mark: filepath.Join(dir, name+".mark"), Data: filepath.Join(dir, name+".data")}
	for _, path := range []string{u.DataGuard.Mark, u.DataGuard.Data} {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return u, u.DataGuard.Data
}

// OpenReal makes a unit of RealUnit with HoldReady ready.
func OpenReal(dir, name string) error {
	return os.WriteFile(order{Dir: dir, Name: name}.path("open"), []byte("open"), 0o600)
}

// RealSignals lists the signals that a unit of RealUnit has received.
func RealSignals(dir, name string) []string {
	return lines(order{Dir: dir, Name: name}.path("signals"))
}

// RealStarts counts the starts of a unit of RealUnit.
func RealStarts(dir, name string) int { return len(lines(order{Dir: dir, Name: name}.path("starts"))) }

func lines(path string) []string {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

func (o order) path(what string) string { return filepath.Join(o.Dir, o.Name+"."+what) }

func (o order) note(what, text string) {
	f, err := os.OpenFile(o.path(what), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, text)
	}
	if err != nil {
		fmt.Println("note:", err)
		os.Exit(99)
	}
	_ = f.Close()
}

// BehaveIfAsked runs the helper process and exits, if the test binary was started by a unit of RealUnit.
func BehaveIfAsked() {
	if len(os.Args) < 3 || os.Args[1] != behaveArg {
		return
	}
	var o order
	if err := json.Unmarshal([]byte(os.Args[2]), &o); err != nil {
		fmt.Println("decode order:", err)
		os.Exit(99)
	}
	os.Exit(o.behave())
}

// behave is the main function of the helper process. It returns the exit code.
func (o order) behave() int {
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGTERM)
	go func() {
		for s := range heard {
			o.note("signals", s.String())
			if !o.IgnoreTerm {
				os.Exit(0)
			}
		}
	}()
	o.note("starts", fmt.Sprint(os.Getpid()))
	if o.Say != "" {
		fmt.Println(o.Say)
	}
	if o.Child {
		child := exec.Command("/bin/sleep", "1000")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			fmt.Println("child:", err)
			return 99
		}
	}
	for o.HoldReady {
		if _, err := os.Stat(o.path("open")); err == nil {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	if !o.Exit || o.Ready == plan.ProbeFile {
		o.becomeReady()
	}
	if o.Exit {
		return o.Code
	}
	select {}
}

func (o order) becomeReady() {
	var err error
	switch o.Ready {
	case plan.ProbeHTTP, plan.ProbeTCP:
		var l net.Listener
		for range 500 { // the previous process may still hold the port
			if l, err = net.Listen("tcp", o.Address); err == nil {
				break
			}
			time.Sleep(2 * time.Millisecond)
		}
		if err == nil {
			go func() { _ = http.Serve(l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) }()
		}
	case plan.ProbeNotify:
		var c net.Conn
		if c, err = net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET")); err == nil {
			_, err = c.Write([]byte("STATUS=well\nREADY=1\n"))
		}
	case plan.ProbeFile:
		err = os.WriteFile(o.path("ready"), []byte("ready"), 0o600)
	case plan.ProbeNone, plan.ProbeExec:
	}
	if err != nil {
		fmt.Println("become ready:", err)
		os.Exit(99)
	}
}

func freePort() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer l.Close() // only the port number is needed
	return l.Addr().(*net.TCPAddr).Port
}

// RealRig returns a rig for hosts that run real processes and use real files below dir. The caller sets Host,
// Crash, Running and the optional functions.
func RealRig(t *testing.T, dir string) Rig {
	return Rig{
		Dir:  dir,
		Unit: func(name string, b Behaviour) plan.Unit { return RealUnit(dir, name, b) },
		Precondition: func(name string) plan.Precondition {
			return plan.Precondition{
				Name: name, Provider: "the test", Ready: plan.Probe{Kind: plan.ProbeFile, Path: order{Dir: dir, Name: name}.path("open")},
			}
		},
		Open: func(name string) {
			if err := OpenReal(dir, name); err != nil {
				t.Fatal(err)
			}
		},
		Starts:  func(unit string) int { return RealStarts(dir, unit) },
		Signals: func(unit string) []string { return RealSignals(dir, unit) },
		WriteFile: func(path string, mode fs.FileMode, content string) {
			_ = os.Remove(path)
			if err := os.WriteFile(path, []byte(content), mode); err != nil {
				t.Fatal(err)
			}
		},
		ReadFile: func(path string) (fs.FileMode, string, bool) {
			data, err := os.ReadFile(path)
			info, statErr := os.Stat(path)
			if err != nil || statErr != nil {
				return 0, "", false
			}
			return info.Mode(), string(data), true
		},
	}
}
