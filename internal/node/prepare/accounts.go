// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Accounts are the groups and users that must exist: the only word of the task accounts, as JSON.
type Accounts struct {
	Groups []Group `json:"groups,omitempty"`
	Users  []User  `json:"users,omitempty"`
}

// Group is a group that must exist; without GID the next number that is free.
type Group struct {
	Name string `json:"name"`
	GID  *int   `json:"gid,omitempty"`
}

// User is a user that must exist, without password. What is empty is the distribution's to choose.
type User struct {
	Name   string   `json:"name"`
	UID    *int     `json:"uid,omitempty"`
	Group  string   `json:"group,omitempty"`
	Groups []string `json:"groups,omitempty"`
	Home   string   `json:"home,omitempty"`
	Shell  string   `json:"shell,omitempty"`
}

func decodeAccounts(words []string) (a Accounts, err error) {
	if len(words) != 1 {
		return a, errors.New("make accounts: want one document")
	}
	d := json.NewDecoder(bytes.NewReader([]byte(words[0])))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return a, fmt.Errorf("make accounts: %w", err)
	}
	return a, nil
}

func accountsDone(_ context.Context, h Host, words []string) error {
	want, err := decodeAccounts(words)
	if err != nil {
		return err
	}
	have, err := h.accounts()
	if err != nil {
		return err
	}
	var wrong []string
	for _, g := range want.Groups {
		if why := have.group(g); why != "" {
			wrong = append(wrong, why)
		}
	}
	for _, u := range want.Users {
		wrong = append(wrong, have.user(u)...)
	}
	return first(wrong)
}

// known is what /etc/passwd and /etc/group say.
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

// accounts fails where it cannot read: nobody is made because nobody was seen.
func (h Host) accounts() (known, error) {
	k := known{users: map[string]passwd{}, groups: map[string]groupLine{}}
	users, there := h.read("/etc/passwd")
	groups, thereToo := h.read("/etc/group")
	if !there || !thereToo {
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

func (k known) group(g Group) string {
	switch have, there := k.groups[g.Name]; {
	case !there:
		return "there is no group " + g.Name
	case g.GID != nil && have.gid != *g.GID:
		return fmt.Sprintf("group %s has the number %d, want %d", g.Name, have.gid, *g.GID)
	}
	return ""
}

func (k known) user(u User) (wrong []string) {
	have, there := k.users[u.Name]
	if !there {
		return []string{"there is no user " + u.Name}
	}
	if u.UID != nil && have.uid != *u.UID {
		wrong = append(wrong, fmt.Sprintf("user %s has the number %d, want %d", u.Name, have.uid, *u.UID))
	}
	if g, ok := k.groups[u.Group]; u.Group != "" && (!ok || g.gid != have.gid) {
		wrong = append(wrong, fmt.Sprintf("the first group of user %s is not %s", u.Name, u.Group))
	}
	if more := k.lacks(u); len(more) > 0 {
		wrong = append(wrong, fmt.Sprintf("user %s is not in %s", u.Name, strings.Join(more, ", ")))
	}
	if u.Home != "" && have.home != u.Home {
		wrong = append(wrong, fmt.Sprintf("user %s has the home %s, want %s", u.Name, have.home, u.Home))
	}
	if u.Shell != "" && have.shell != u.Shell {
		wrong = append(wrong, fmt.Sprintf("user %s has the shell %s, want %s", u.Name, have.shell, u.Shell))
	}
	return wrong
}

// lacks lists the further groups that the user is not in.
func (k known) lacks(u User) (missing []string) {
	for _, g := range u.Groups {
		if !slices.Contains(k.groups[g].members, u.Name) && g != u.Group {
			missing = append(missing, g)
		}
	}
	return missing
}
