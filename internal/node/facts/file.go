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

// File is where the machine's facts are for its units to read: NAME=VALUE lines in Env, values without spaces, and each fact as a
// file of its own in Folder. A fact that is not known has no line and no file; it is never an empty value.
//
//	DEFAULT_IPV4=10.89.0.10
//	ETH0_IPV4=10.89.0.10
//	ZONE=eu-1a
type File struct {
	Env    string // /run/slipway/facts.env
	Folder string // /run/slipway/facts
	Zone   string // where somebody may write the machine's zone: /etc/slipway/zone
	Log    *slog.Logger
}

// Write brings the files to what the machine is now. When that cannot be found out, they stay as they are.
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
	if err := os.MkdirAll(f.Folder, 0o755); err != nil {
		return fmt.Errorf("write the machine's facts: %w", err)
	}
	if err := replace(f.Env, text.String()); err != nil {
		return err
	}
	for _, name := range names { // after the line is there: this is what opens a gate
		if err := replace(filepath.Join(f.Folder, name), found[name]+"\n"); err != nil {
			return err
		}
	}
	old, err := os.ReadDir(f.Folder)
	if err != nil {
		return fmt.Errorf("look for facts that are no more: %w", err)
	}
	for _, e := range old {
		if _, still := found[e.Name()]; still {
			continue
		}
		if err := os.Remove(filepath.Join(f.Folder, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a fact that is no more: %w", err)
		}
	}
	return nil
}

// replace leaves a file alone that is right.
func replace(path, text string) error {
	if have, err := os.ReadFile(path); err == nil && string(have) == text {
		return nil
	}
	return durable.WriteFile(path, 0o644, []byte(text))
}

// lookAgain is for what the kernel does not tell: the zone.
const lookAgain = 15 * time.Second

// Keep writes the files whenever the machine's addresses or routes change, until ctx ends.
func (f File) Keep(ctx context.Context) error {
	addresses, routes := make(chan netlink.AddrUpdate, 16), make(chan netlink.RouteUpdate, 16)
	broken := func(err error) { f.Log.Warn("watch addresses", "error", err) }
	if err := netlink.AddrSubscribeWithOptions(addresses, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: broken}); err != nil {
		broken(err) // the tick is left
	}
	if err := netlink.RouteSubscribeWithOptions(routes, ctx.Done(), netlink.RouteSubscribeOptions{ErrorCallback: broken}); err != nil {
		broken(err)
	}
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	last := ""
	for {
		problem := ""
		if err := f.Write(); err != nil {
			problem = err.Error()
		}
		if problem != last && problem != "" {
			f.Log.Warn("facts are as they were", "error", problem)
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
