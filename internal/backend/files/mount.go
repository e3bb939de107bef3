// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// mounted is one line of /proc/self/mountinfo.
type mounted struct {
	target, fstype, source string
	options                []string
}

// observeMount compares the topmost mount at the target with the plan. Options that the file system
// interprets are not compared, because mountinfo does not show them as written.
func observeMount(m plan.Mount) (plan.State, error) {
	have, ok, err := topMount(m.Target)
	if err != nil {
		return plan.State{}, err
	}
	if !ok {
		return plan.State{Existence: plan.Absent, Detail: "nothing is mounted there"}, nil
	}
	var details []string
	if isBind(m) {
		if !sameFile(m.Source, m.Target) {
			details = append(details, "not "+m.Source+" but something else is mounted there")
		}
	} else {
		if have.fstype != m.Type {
			details = append(details, "type "+have.fstype+", want "+m.Type)
		}
		if strings.HasPrefix(m.Source, "/") && have.source != m.Source && !sameFile(have.source, m.Source) {
			details = append(details, "source "+have.source+", want "+m.Source)
		}
	}
	for _, o := range m.Options {
		if f, _ := mountFlag(o); f&^(unix.MS_BIND|unix.MS_REC) != 0 && !slices.Contains(have.options, o) {
			details = append(details, "option "+o+" is missing")
		}
	}
	if len(details) > 0 {
		return wrong(strings.Join(details, "; ")), nil
	}
	return right(), nil
}

// makeMount mounts the file system, after unmounting a different one. A bind mount needs a second call to
// mount(2) for its other flags; if that fails, it is unmounted again.
func makeMount(m plan.Mount) error {
	if err := os.MkdirAll(m.Target, 0o755); err != nil {
		return err
	}
	if s, err := observeMount(m); err != nil || s.Matches {
		return err
	} else if s.Existence == plan.Present {
		if err := unmount(m.Target); err != nil {
			return err
		}
	}
	flags, data := mountOptions(m.Options)
	first := flags
	if isBind(m) {
		first = unix.MS_BIND | flags&unix.MS_REC // other flags take effect only with a remount
	}
	if err := unix.Mount(m.Source, m.Target, m.Type, first, data); err != nil {
		return fmt.Errorf("mount %s at %s: %w", m.Source, m.Target, err)
	}
	if extra := flags &^ (unix.MS_BIND | unix.MS_REC); isBind(m) && extra != 0 {
		if err := unix.Mount("", m.Target, "", unix.MS_REMOUNT|unix.MS_BIND|extra, ""); err != nil {
			return errors.Join(fmt.Errorf("mount %s at %s: set options: %w", m.Source, m.Target, err), unmount(m.Target))
		}
	}
	return nil
}

// unmount unmounts the topmost mount at target. It returns nil if nothing is mounted there.
func unmount(target string) error {
	if _, ok, err := topMount(target); err != nil || !ok {
		return err
	}
	if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	return nil
}

func isBind(m plan.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

// mountFlag returns the mount(2) flag of an option. Other options are passed to the file system as text.
func mountFlag(option string) (flag uintptr, ok bool) {
	switch option {
	case "bind":
		return unix.MS_BIND, true
	case "rbind":
		return unix.MS_BIND | unix.MS_REC, true
	case "ro":
		return unix.MS_RDONLY, true
	case "nosuid":
		return unix.MS_NOSUID, true
	case "nodev":
		return unix.MS_NODEV, true
	case "noexec":
		return unix.MS_NOEXEC, true
	case "noatime":
		return unix.MS_NOATIME, true
	case "relatime":
		return unix.MS_RELATIME, true
	case "rw", "defaults":
		return 0, true
	}
	return 0, false
}

// mountOptions splits options into flags of mount(2) and data for the file system.
func mountOptions(options []string) (flags uintptr, data string) {
	var rest []string
	for _, o := range options {
		if f, ok := mountFlag(o); ok {
			flags |= f
		} else {
			rest = append(rest, o)
		}
	}
	return flags, strings.Join(rest, ",")
}

// topMount returns the last mount at exactly target, which is the visible one.
func topMount(target string) (top mounted, ok bool, err error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return mounted{}, false, err
	}
	target = filepath.Clean(target)
	for line := range strings.Lines(string(data)) {
		if m, sound := parseMount(line); sound && m.target == target {
			top, ok = m, true
		}
	}
	return top, ok, nil
}

// parseMount reads "36 35 98:0 /root /target ro,noatime shared:1 - ext4 /dev/sda1 rw"; see proc_pid_mountinfo(5).
func parseMount(line string) (mounted, bool) {
	front, back, ok := strings.Cut(line, " - ")
	f, b := strings.Fields(front), strings.Fields(back)
	if !ok || len(f) < 6 || len(b) < 2 {
		return mounted{}, false
	}
	return mounted{target: unescape(f[4]), options: strings.Split(f[5], ","), fstype: b[0], source: unescape(b[1])}, true
}

// unescape decodes the octal escapes of mountinfo, such as \040 for a space.
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// sameFile reports whether a and b are the same file or device. It is false if either cannot be read.
func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}
