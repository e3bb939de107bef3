// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/operate"
)

func logs(e Env) *cobra.Command {
	var name, machine string
	var follow bool
	var tail int
	cmd := &cobra.Command{
		Use:   "logs COMPONENT",
		Short: "Show the log of a component, the agent or a machine",
		Long: `Show the log of a component (kubelet, etcd, kube-apiserver, …), of the node's agent ("agent"), or what a machine said while
it booted ("machine"). It works while the machine is down too. A machine of slipway apply is asked over SSH; "machine" is its
journal there. Logs of pods: slipway kubectl logs.`,
		Example: `  slipway logs kubelet
  slipway logs kube-apiserver --tail 20 -f
  slipway logs --name test agent`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: components(e, &name, &machine),
	}
	nameFlag(e, cmd, &name)
	machineFlag(e, cmd, &machine, &name)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is written later, until Ctrl-C")
	cmd.Flags().IntVar(&tail, "tail", -1, "only the last lines; -1 shows all")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if tail < -1 {
			return usageError{errors.New("--tail: use a number of lines, or -1 for all")}
		}
		far, err := e.Inventory.IsRemote(name)
		if err != nil {
			return err
		}
		if far {
			err = operate.RemoteLog(cmd.Context(), *e.Inventory, name, machine, args[0], tail, follow, e.Out)
		} else {
			err = nearLog(cmd.Context(), e, name, machine, args[0], tail, follow)
		}
		if cmd.Context().Err() != nil && (err == nil || far) {
			return exitError(exitInterrupted) // how following ends; there is nothing to say
		}
		return err
	}
	return cmd
}

func nearLog(ctx context.Context, e Env, name, machine, component string, tail int, follow bool) error {
	path, err := operate.LogFile(ctx, *e.Inventory, name, machine, component)
	if err != nil {
		return err
	}
	return showLog(ctx, e.Out, path, tail, follow)
}

func machineFlag(e Env, cmd *cobra.Command, machine, cluster *string) {
	cmd.Flags().StringVar(machine, "machine", "", "machine (default: the first one)")
	_ = cmd.RegisterFlagCompletionFunc("machine", machineNames(e, cluster))
}

// lookPeriod is short for a reader and long for a machine: one stat each time.
const lookPeriod = 100 * time.Millisecond

// showLog writes the last lines of a file, or all for tail < 0, and with follow what is added until ctx ends. Rotation does
// not end it, be it by truncation or by another file under the same name.
func showLog(ctx context.Context, w io.Writer, path string, tail int, follow bool) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read log: %s is not there yet", path)
	}
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	defer func() { f.Close() }()
	if tail >= 0 {
		if err := seekTail(f, tail); err != nil {
			return fmt.Errorf("read log: %w", err)
		}
	}
	if _, err := io.Copy(w, f); err != nil || !follow {
		return err
	}
	tick := time.NewTicker(lookPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil // how a follower ends
		case <-tick.C:
		}
		if f, err = current(f, path); err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		if _, err := io.Copy(w, f); err != nil {
			return err
		}
	}
}

// current returns the file to go on with: f, at its beginning if it was truncated, or the new file at path, once f has been
// read to its end.
func current(f *os.File, path string) (*os.File, error) {
	info, err := f.Stat()
	if err != nil {
		return f, err
	}
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return f, err
	}
	if info.Size() < at {
		_, err := f.Seek(0, io.SeekStart)
		return f, err
	}
	now, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (os.SameFile(info, now) || info.Size() > at) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	next, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	f.Close()
	return next, nil
}

// seekTail goes back n lines from the end, reading backwards in blocks.
func seekTail(f *os.File, n int) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return err
	}
	buf := make([]byte, 64<<10)
	for at := end; at > 0; {
		size := min(at, int64(len(buf)))
		at -= size
		if _, err := f.ReadAt(buf[:size], at); err != nil {
			return err
		}
		block := buf[:size]
		if at+size == end {
			block = bytes.TrimSuffix(block, []byte("\n")) // ends the last line, begins none
		}
		for i := bytes.LastIndexByte(block, '\n'); i >= 0; i = bytes.LastIndexByte(block, '\n') {
			if n--; n == 0 {
				_, err := f.Seek(at+int64(i)+1, io.SeekStart)
				return err
			}
			block = block[:i]
		}
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}
