// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/slipway-project/slipway/internal/durable"
)

// File writes the machine's facts for units: NAME=VALUE lines, without spaces in the values, to the file Env, and each fact to
// a separate file in the directory Dir. A fact that is not known has no line and no file. Values are never empty.
//
//	DEFAULT_IPV4=10.89.0.10
//	ETH0_IPV4=10.89.0.10
//	ZONE=eu-1a
type File struct {
	Env  string // /run/slipway/facts.env
	Dir  string // /run/slipway/facts
	Zone string // file in which an operator may set the machine's zone: /etc/slipway/zone
	Log  *slog.Logger
}

// Write updates the files. If the facts cannot be detected, the files stay as they are.
func (f File) Write() error {
	found, err := f.gather("/sys")
	if err != nil {
		return fmt.Errorf("find the machine's facts: %w", err)
	}
	return f.write(found)
}

func (f File) write(found map[string]string) error {
	names := slices.Sorted(maps.Keys(found))
	var text strings.Builder
	for _, name := range names {
		fmt.Fprintf(&text, "%s=%s\n", name, found[name])
	}
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		return fmt.Errorf("write the machine's facts: %w", err)
	}
	if err := replace(f.Env, text.String()); err != nil {
		return err
	}
	for _, name := range names { // after Env: preconditions wait for these files
		if err := replace(filepath.Join(f.Dir, name), found[name]+"\n"); err != nil {
			return err
		}
	}
	old, err := os.ReadDir(f.Dir)
	if err != nil {
		return fmt.Errorf("list facts: %w", err)
	}
	for _, e := range old {
		if _, still := found[e.Name()]; still {
			continue
		}
		if err := os.Remove(filepath.Join(f.Dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an outdated fact: %w", err)
		}
	}
	return nil
}

// replace writes a file unless it already has the content.
func replace(path, text string) error {
	if have, err := os.ReadFile(path); err == nil && string(have) == text {
		return nil
	}
	return durable.WriteFile(path, 0o600, []byte(text)) // the kernel shows the product UUID to root only
}

// interval is the time between two updates without a notification from the kernel. It does not report changes of the zone.
const interval = 15 * time.Second

// Keep updates the files when the machine's addresses or routes change, and every 15 s, until ctx ends. It logs errors.
func (f File) Keep(ctx context.Context) error {
	addresses, routes := make(chan netlink.AddrUpdate, 16), make(chan netlink.RouteUpdate, 16)
	failed := func(err error) { f.Log.Warn("addresses are not watched, facts are updated every 15 s", "error", err) }
	if err := netlink.AddrSubscribeWithOptions(addresses, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: failed}); err != nil {
		failed(err)
	}
	if err := netlink.RouteSubscribeWithOptions(routes, ctx.Done(), netlink.RouteSubscribeOptions{ErrorCallback: failed}); err != nil {
		failed(err)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	last := ""
	for {
		problem := ""
		if err := f.Write(); err != nil {
			problem = err.Error()
		}
		if problem != last && problem != "" {
			f.Log.Warn("facts not updated", "error", problem)
		}
		last = problem
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-addresses:
			if !ok {
				addresses = nil
			}
		case _, ok := <-routes:
			if !ok {
				routes = nil
			}
		case <-tick.C:
		}
	}
}
