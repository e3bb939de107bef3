// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const nobodysHome = "/nonexistent"

// makeAccounts adds and amends. A number that differs is not changed: files belong to numbers.
func makeAccounts(ctx context.Context, h Host, words []string) error {
	want, err := decodeAccounts(words)
	if err != nil {
		return err
	}
	for _, g := range want.Groups {
		have, err := h.accounts()
		if err != nil {
			return err
		}
		if err := h.makeGroup(ctx, have, g); err != nil {
			return err
		}
	}
	for _, u := range want.Users {
		have, err := h.accounts()
		if err != nil {
			return err
		}
		if err := h.makeUser(ctx, have, u); err != nil {
			return err
		}
	}
	return nil
}

func (h Host) makeGroup(ctx context.Context, have known, g Group) error {
	if why := have.group(g); why == "" {
		return nil
	} else if _, there := have.groups[g.Name]; there {
		return fmt.Errorf("%s: files belong to it by number; change it by hand with groupmod, or change spec.os.groups", why)
	}
	args := h.tool("groupadd")
	if h.busybox() {
		args = []string{"/usr/bin/env", "addgroup"}
	}
	if g.GID != nil {
		args = append(args, "-g", strconv.Itoa(*g.GID))
	}
	if _, err := h.run(ctx, append(args, g.Name)...); err != nil {
		return fmt.Errorf("make group %s: %w", g.Name, err)
	}
	h.say("group %s made", g.Name)
	return nil
}

func (h Host) makeUser(ctx context.Context, have known, u User) error {
	now, there := have.users[u.Name]
	if there && u.UID != nil && now.uid != *u.UID {
		return fmt.Errorf("user %s has the number %d, want %d: files belong to it by number; change it by hand with usermod, or change spec.os.users", u.Name, now.uid, *u.UID)
	}
	switch {
	case there && len(have.user(u)) == 0:
		return nil
	case h.busybox():
		return h.busyboxUser(ctx, have, u, there)
	case there:
		return h.amendUser(ctx, have, u)
	}
	args := h.tool("useradd")
	if u.UID != nil {
		args = append(args, "--uid", strconv.Itoa(*u.UID))
	}
	if u.Group != "" {
		args = append(args, "--no-user-group", "--gid", u.Group)
	} else if _, exists := have.groups[u.Name]; exists {
		args = append(args, "--no-user-group", "--gid", u.Name)
	} else {
		args = append(args, "--user-group")
	}
	if len(u.Groups) > 0 {
		args = append(args, "--groups", strings.Join(u.Groups, ","))
	}
	if u.Home != "" {
		args = append(args, "--home-dir", u.Home, "--create-home")
	} else {
		args = append(args, "--home-dir", nobodysHome, "--no-create-home")
	}
	if u.Shell != "" {
		args = append(args, "--shell", u.Shell)
	}
	if _, err := h.run(ctx, append(args, u.Name)...); err != nil {
		return fmt.Errorf("make user %s: %w", u.Name, err)
	}
	h.say("user %s made", u.Name)
	return nil
}

// amendUser does not move what is in a home: that may be anybody's.
func (h Host) amendUser(ctx context.Context, have known, u User) error {
	args, now := h.tool("usermod"), have.users[u.Name]
	if g, ok := have.groups[u.Group]; u.Group != "" && (!ok || g.gid != now.gid) {
		args = append(args, "--gid", u.Group)
	}
	if more := have.lacks(u); len(more) > 0 {
		args = append(args, "--append", "--groups", strings.Join(more, ","))
	}
	if u.Home != "" && u.Home != now.home {
		args = append(args, "--home", u.Home)
	}
	if u.Shell != "" && u.Shell != now.shell {
		args = append(args, "--shell", u.Shell)
	}
	if _, err := h.run(ctx, append(args, u.Name)...); err != nil {
		return fmt.Errorf("amend user %s: %w", u.Name, err)
	}
	h.say("user %s amended", u.Name)
	return nil
}

func (h Host) busyboxUser(ctx context.Context, have known, u User, there bool) error {
	if !there {
		args := []string{"/usr/bin/env", "adduser", "-D"}
		if u.UID != nil {
			args = append(args, "-u", strconv.Itoa(*u.UID))
		}
		if u.Group != "" {
			args = append(args, "-G", u.Group)
		}
		if u.Home != "" {
			args = append(args, "-h", u.Home)
		} else {
			args = append(args, "-h", nobodysHome, "-H")
		}
		if u.Shell != "" {
			args = append(args, "-s", u.Shell)
		}
		if _, err := h.run(ctx, append(args, u.Name)...); err != nil {
			return fmt.Errorf("make user %s: %w", u.Name, err)
		}
	}
	for _, g := range have.lacks(u) {
		if _, err := h.run(ctx, "/usr/bin/env", "addgroup", u.Name, g); err != nil {
			return fmt.Errorf("put user %s into %s: %w", u.Name, g, err)
		}
	}
	h.say("user %s made", u.Name)
	return nil
}

// tool is a program of the shadow suite; --prefix makes it work on another root without being in it.
func (h Host) tool(name string) []string {
	if h.Root != "/" {
		return []string{"/usr/bin/env", name, "--prefix", h.Root}
	}
	return []string{"/usr/bin/env", name}
}

// busybox has tools of its own for accounts.
func (h Host) busybox() bool {
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		if _, err := os.Stat(filepath.Join(dir, "useradd")); err == nil {
			return false
		}
	}
	return true
}
