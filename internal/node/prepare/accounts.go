// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Accounts are the groups and users that must exist. The task accounts takes them as its only argument, in
// JSON.
type Accounts struct {
	Groups []Group `json:"groups,omitempty"`
	Users  []User  `json:"users,omitempty"`
}

// Group is a group that must exist. Without GID it gets the next free one.
type Group struct {
	Name string `json:"name"`
	GID  *int   `json:"gid,omitempty"`
}

// User is a user that must exist, without a password. The distribution chooses what is empty.
type User struct {
	Name   string   `json:"name"`
	UID    *int     `json:"uid,omitempty"`
	Group  string   `json:"group,omitempty"`
	Groups []string `json:"groups,omitempty"`
	Home   string   `json:"home,omitempty"`
	Shell  string   `json:"shell,omitempty"`
}

const noHome = "/nonexistent"

func decodeAccounts(args []string) (a Accounts, err error) {
	if len(args) != 1 {
		return a, errors.New("decode accounts: want one document")
	}
	d := json.NewDecoder(bytes.NewReader([]byte(args[0])))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return a, fmt.Errorf("decode accounts: %w", err)
	}
	return a, nil
}

func accountsDone(_ context.Context, h Host, args []string) error {
	want, err := decodeAccounts(args)
	if err != nil {
		return err
	}
	have, err := h.accounts()
	if err != nil {
		return err
	}
	var reasons []string
	for _, g := range want.Groups {
		if reason := have.group(g); reason != "" {
			reasons = append(reasons, reason)
		}
	}
	for _, u := range want.Users {
		reasons = append(reasons, have.user(u)...)
	}
	return summary(reasons)
}

// createAccounts creates and changes accounts. It never changes a UID or GID that differs: files belong to
// numbers.
func createAccounts(ctx context.Context, h Host, args []string) error {
	want, err := decodeAccounts(args)
	if err != nil {
		return err
	}
	for _, g := range want.Groups {
		have, err := h.accounts()
		if err != nil {
			return err
		}
		if err := h.createGroup(ctx, have, g); err != nil {
			return err
		}
	}
	for _, u := range want.Users {
		have, err := h.accounts()
		if err != nil {
			return err
		}
		if err := h.createUser(ctx, have, u); err != nil {
			return err
		}
	}
	return nil
}

// known is the content of /etc/passwd and /etc/group.
type known struct {
	users  map[string]passwd
	groups map[string]groupLine
}

type passwd struct {
	uid, gid    int
	home, shell string
}

type groupLine struct {
	gid     int
	members []string
}

// accounts fails if a file cannot be read: an unreadable file must not make every account look missing.
func (h Host) accounts() (known, error) {
	k := known{users: map[string]passwd{}, groups: map[string]groupLine{}}
	users, usersOK := h.read("/etc/passwd")
	groups, groupsOK := h.read("/etc/group")
	if !usersOK || !groupsOK {
		return k, errors.New("read accounts: /etc/passwd or /etc/group cannot be read")
	}
	for line := range strings.Lines(users) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 7 {
			continue
		}
		uid, err := strconv.Atoi(f[2])
		gid, err2 := strconv.Atoi(f[3])
		if errors.Join(err, err2) == nil {
			k.users[f[0]] = passwd{uid, gid, f[5], f[6]}
		}
	}
	for line := range strings.Lines(groups) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 4 {
			continue
		}
		if gid, err := strconv.Atoi(f[2]); err == nil {
			k.groups[f[0]] = groupLine{gid, strings.FieldsFunc(f[3], func(r rune) bool { return r == ',' })}
		}
	}
	return k, nil
}

// group returns how the group differs from g, "" if it does not.
func (k known) group(g Group) string {
	switch have, exists := k.groups[g.Name]; {
	case !exists:
		return fmt.Sprintf("group %s does not exist", g.Name)
	case g.GID != nil && have.gid != *g.GID:
		return fmt.Sprintf("group %s has GID %d, want %d", g.Name, have.gid, *g.GID)
	}
	return ""
}

// user returns how the user differs from u.
func (k known) user(u User) (reasons []string) {
	have, exists := k.users[u.Name]
	if !exists {
		return []string{fmt.Sprintf("user %s does not exist", u.Name)}
	}
	if u.UID != nil && have.uid != *u.UID {
		reasons = append(reasons, fmt.Sprintf("user %s has UID %d, want %d", u.Name, have.uid, *u.UID))
	}
	if g, ok := k.groups[u.Group]; u.Group != "" && (!ok || g.gid != have.gid) {
		reasons = append(reasons, fmt.Sprintf("the primary group of user %s is not %s", u.Name, u.Group))
	}
	if more := k.missingGroups(u); len(more) > 0 {
		reasons = append(reasons, fmt.Sprintf("user %s is not in group %s", u.Name, strings.Join(more, ", ")))
	}
	if u.Home != "" && have.home != u.Home {
		reasons = append(reasons, fmt.Sprintf("user %s has home directory %s, want %s", u.Name, have.home, u.Home))
	}
	if u.Shell != "" && have.shell != u.Shell {
		reasons = append(reasons, fmt.Sprintf("user %s has shell %s, want %s", u.Name, have.shell, u.Shell))
	}
	return reasons
}

// missingGroups lists the supplementary groups that the user is not in.
func (k known) missingGroups(u User) (missing []string) {
	for _, g := range u.Groups {
		if !slices.Contains(k.groups[g].members, u.Name) && g != u.Group {
			missing = append(missing, g)
		}
	}
	return missing
}

func (h Host) createGroup(ctx context.Context, have known, g Group) error {
	reason := have.group(g)
	if reason == "" {
		return nil
	}
	if _, exists := have.groups[g.Name]; exists {
		return fmt.Errorf("create group: %s; files belong to GIDs (change it by hand with groupmod, or change spec.os.groups)", reason)
	}
	args := h.shadow("groupadd")
	if busybox() {
		args = byPath("addgroup")
	}
	if g.GID != nil {
		args = append(args, "-g", strconv.Itoa(*g.GID))
	}
	if _, err := h.run(ctx, nil, append(args, g.Name)...); err != nil {
		return fmt.Errorf("create group %s: %w", g.Name, err)
	}
	h.log("created group %s", g.Name)
	return nil
}

// createUser creates the user or changes what differs. It does not move what is in a home directory.
func (h Host) createUser(ctx context.Context, have known, u User) error {
	now, exists := have.users[u.Name]
	if exists && u.UID != nil && now.uid != *u.UID {
		return fmt.Errorf("create user: user %s has UID %d, want %d; files belong to UIDs (change it by hand with usermod, or change spec.os.users)", u.Name, now.uid, *u.UID)
	}
	switch {
	case exists && len(have.user(u)) == 0:
		return nil
	case busybox():
		return h.createUserBusybox(ctx, have, u, exists)
	}
	var args []string
	option := func(set bool, words ...string) {
		if set {
			args = append(args, words...)
		}
	}
	verb := "create"
	if exists {
		verb, args = "change", h.shadow("usermod")
		g, ok := have.groups[u.Group]
		option(u.Group != "" && (!ok || g.gid != now.gid), "--gid", u.Group)
		more := have.missingGroups(u)
		option(len(more) > 0, "--append", "--groups", strings.Join(more, ","))
		option(u.Home != "" && u.Home != now.home, "--home", u.Home)
		option(u.Shell != "" && u.Shell != now.shell, "--shell", u.Shell)
	} else {
		args = h.shadow("useradd")
		if u.UID != nil {
			args = append(args, "--uid", strconv.Itoa(*u.UID))
		}
		_, sameName := have.groups[u.Name]
		option(u.Group != "", "--no-user-group", "--gid", u.Group)
		option(u.Group == "" && sameName, "--no-user-group", "--gid", u.Name)
		option(u.Group == "" && !sameName, "--user-group")
		option(len(u.Groups) > 0, "--groups", strings.Join(u.Groups, ","))
		option(u.Home != "", "--home-dir", u.Home, "--create-home")
		option(u.Home == "", "--home-dir", noHome, "--no-create-home")
		option(u.Shell != "", "--shell", u.Shell)
	}
	if _, err := h.run(ctx, nil, append(args, u.Name)...); err != nil {
		return fmt.Errorf("%s user %s: %w", verb, u.Name, err)
	}
	h.log("%sd user %s", verb, u.Name)
	return nil
}

func (h Host) createUserBusybox(ctx context.Context, have known, u User, exists bool) error {
	if !exists {
		args := byPath("adduser", "-D")
		if u.UID != nil {
			args = append(args, "-u", strconv.Itoa(*u.UID))
		}
		if u.Group != "" {
			args = append(args, "-G", u.Group)
		}
		if u.Home != "" {
			args = append(args, "-h", u.Home)
		} else {
			args = append(args, "-h", noHome, "-H")
		}
		if u.Shell != "" {
			args = append(args, "-s", u.Shell)
		}
		if _, err := h.run(ctx, nil, append(args, u.Name)...); err != nil {
			return fmt.Errorf("create user %s: %w", u.Name, err)
		}
	}
	for _, g := range have.missingGroups(u) {
		if _, err := h.run(ctx, nil, byPath("addgroup", u.Name, g)...); err != nil {
			return fmt.Errorf("add user %s to group %s: %w", u.Name, g, err)
		}
	}
	h.log("created user %s", u.Name)
	return nil
}

// shadow is the command line of a program of the shadow suite, which can work on another root directory.
func (h Host) shadow(program string) []string {
	if h.Root != "/" {
		return byPath(program, "--prefix", h.Root)
	}
	return byPath(program)
}

// busybox reports whether this system lacks the shadow suite and has BusyBox's account programs instead.
func busybox() bool {
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		if _, err := os.Stat(filepath.Join(dir, "useradd")); err == nil {
			return false
		}
	}
	return true
}
