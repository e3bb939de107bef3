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
		Short: "Print the log of a component, the agent or a machine",
		Long: `Print the log of a component (kubelet, etcd, kube-apiserver, …), of the machine's agent ("agent"), or of the machine
("machine": its console, or its journal if it is reached over SSH). Logs of a local machine are available while the
machine is not running. For logs of pods, use slipway kubectl logs.`,
		Example: `  slipway logs kubelet
  slipway logs kube-apiserver --tail 20 -f
  slipway logs --name test agent`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: components(e, &name, &machine),
	}
	nameFlag(e, cmd, &name)
	machineFlag(e, cmd, &machine, &name)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "keep printing new lines until interrupted")
	cmd.Flags().IntVar(&tail, "tail", -1, "number of last lines to print; -1 prints all")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if tail < -1 {
			return usageError{errors.New("--tail must be a number of lines, or -1 for all")}
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
			return exitError(exitInterrupted) // the usual end of --follow, which needs no message
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

// followInterval is how often a followed log is checked. Each check costs one stat.
const followInterval = 100 * time.Millisecond

// showLog writes the last lines of a file to w, or all lines if tail is negative. With follow it continues with lines
// that are added, until ctx ends. It follows a log across rotation, by truncation or by renaming.
func showLog(ctx context.Context, w io.Writer, path string, tail int, follow bool) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read log: %s does not exist yet", path)
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
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil // the usual way to stop following
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

// current returns the file to read next: f, rewound if it was truncated, or the new file at path once f has been read to
// its end.
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

// seekTail moves to the start of the last n lines, reading backwards in blocks.
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
			block = bytes.TrimSuffix(block, []byte("\n")) // it ends the last line and does not start another
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
