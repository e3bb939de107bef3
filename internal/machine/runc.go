// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/machine/process"
)

func (l *Local) runcCommand(ctx context.Context, cluster string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, l.runc, append([]string{"--root", l.runcRoot(cluster)}, args...)...)
	cmd.Dir = "/"
	return cmd
}

// runcKnows reports whether runc has a record of the machine, which may be stale.
func (l *Local) runcKnows(cluster, name string) bool {
	_, err := os.Lstat(filepath.Join(l.runcRoot(cluster), name))
	return err == nil
}

// runcRunning asks runc for the machine's PID 1; ok is false when it does not run.
func (l *Local) runcRunning(ctx context.Context, cluster, name string) (p process.ID, ok bool) {
	if !l.runcKnows(cluster, name) {
		return process.ID{}, false
	}
	out, err := l.runcCommand(ctx, cluster, "state", name).Output()
	var st struct {
		Status string `json:"status"`
		PID    int    `json:"pid"`
	}
	if err != nil || json.Unmarshal(out, &st) != nil || st.Status != "running" {
		return process.ID{}, false
	}
	p, err = process.Identify(st.PID)
	return p, err == nil
}

// runcForget removes runc's record of a machine whose processes are gone, also one that runc itself cannot read any more.
func (l *Local) runcForget(ctx context.Context, cluster, name string) error {
	if !l.runcKnows(cluster, name) {
		return nil
	}
	out, err := l.runcCommand(ctx, cluster, "delete", "--force", name).CombinedOutput()
	if err == nil && !l.runcKnows(cluster, name) {
		return nil
	}
	if rm := os.RemoveAll(filepath.Join(l.runcRoot(cluster), name)); rm != nil {
		return fmt.Errorf("remove runc record of %s: %w", name, errors.Join(rm, err, errors.New(strings.TrimSpace(string(out)))))
	}
	return nil
}

// bootLimit is far above the usual 0.1 s: a machine that needs longer than this will not come.
const bootLimit = 30 * time.Second

// boot starts the machine's PID 1 and returns when it says that it stands.
func (l *Local) boot(ctx context.Context, s Spec) (process.ID, error) {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	f := l.folders(s.Cluster, s.Name)
	console, err := os.OpenFile(f.console(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return process.ID{}, fmt.Errorf("open machine console: %w", err)
	}
	defer console.Close()
	stable, err := durable.ShareFolder(l.clusters()) // see removeParents
	if err != nil {
		return process.ID{}, err
	}
	defer stable()
	ready, tell, err := os.Pipe()
	if err != nil {
		return process.ID{}, err
	}
	defer ready.Close()
	err = inOwnMounts(func() error {
		if err := mountOverlay(f); err != nil {
			return err
		}
		cmd := l.runcCommand(ctx, s.Cluster, "run", "--detach", "--preserve-fds", "1", "--pid-file", f.pidFile(), "--bundle", f.bundle(), s.Name)
		cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = console, console, []*os.File{tell}
		// When this process is killed, an orphan must not go on while the next Ensure begins.
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd.Run()
	})
	tell.Close()
	if err != nil {
		return process.ID{}, fmt.Errorf("start machine %s: %w%s", s.Name, err, tail(f.console()))
	}
	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Now()) })
	defer stop()
	word, err := io.ReadAll(ready)
	if err != nil || !bytes.Equal(word, []byte(readyWord)) {
		return process.ID{}, fmt.Errorf("start machine %s: its PID 1 ended or hung before it was ready%s", s.Name, tail(f.console()))
	}
	p, err := readPID(f.pidFile())
	if err != nil {
		return process.ID{}, fmt.Errorf("start machine %s: it ended at once: %w%s", s.Name, err, tail(f.console()))
	}
	return p, nil
}

func readPID(path string) (process.ID, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return process.ID{}, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return process.ID{}, err
	}
	return process.Identify(pid)
}

// tail is the end of a log for an error message.
func tail(path string) string {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || len(bytes.TrimSpace(data)) == 0 {
		return ""
	}
	if len(data) > 2000 {
		data = data[len(data)-2000:]
	}
	return "\n  " + strings.ReplaceAll(string(bytes.TrimSpace(data)), "\n", "\n  ")
}
