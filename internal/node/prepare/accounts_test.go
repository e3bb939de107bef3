// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

const (
	passwdText = "root:x:0:0:root:/root:/bin/sh\nops:x:1500:1500::/nonexistent:/usr/sbin/nologin\n"
	groupText  = "root:x:0:\nops:x:1500:\ndisk:x:6:ops,other\n"
)

func TestAccountsDone(t *testing.T) {
	t.Parallel()
	h := Host{Root: root(t, map[string]string{"etc/passwd": passwdText, "etc/group": groupText})}
	for doc, want := range map[string]string{
		`{"groups":[{"name":"disk"},{"name":"ops","gid":1500}],"users":[{"name":"ops","uid":1500,"group":"ops","groups":["disk"],"shell":"/usr/sbin/nologin"}]}`: "",
		`{"groups":[{"name":"web"}]}`:                    "group web does not exist",
		`{"groups":[{"name":"disk","gid":7}]}`:           "group disk has GID 6, want 7",
		`{"users":[{"name":"web"}]}`:                     "user web does not exist",
		`{"users":[{"name":"ops","uid":7}]}`:             "user ops has UID 1500, want 7",
		`{"users":[{"name":"ops","group":"disk"}]}`:      "the primary group of user ops is not disk",
		`{"users":[{"name":"ops","groups":["root"]}]}`:   "user ops is not in group root",
		`{"users":[{"name":"ops","home":"/srv/ops"}]}`:   "has home directory /nonexistent, want /srv/ops",
		`{"users":[{"name":"ops","shell":"/bin/bash"}]}`: "has shell /usr/sbin/nologin, want /bin/bash",
		`{"users":[{"name":"ops","pasword":"x"}]}`:       "unknown field",
	} {
		wantError(t, h.Done(t.Context(), []string{"accounts", doc}), want)
	}
	if err := os.Remove(h.path("/etc/group")); err != nil {
		t.Fatal(err)
	}
	wantError(t, h.Do(t.Context(), []string{"accounts", `{"groups":[{"name":"web"}]}`}), "cannot be read")
}

// TestCreateAccounts uses the distribution's programs on another root directory.
func TestCreateAccounts(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("useradd"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs useradd and root")
	}
	h := Host{Root: root(t, map[string]string{
		"etc/passwd": passwdText, "etc/group": groupText, "etc/shadow": "root:*:1:0:99999:7:::\nops:!:1:0:99999:7:::\n", "etc/gshadow": "root:*::\nops:!::\ndisk:!::ops,other\n",
		"etc/login.defs": "UID_MIN 1000\nUID_MAX 60000\nGID_MIN 1000\nGID_MAX 60000\n",
	})}
	first := []string{"accounts", `{"groups":[{"name":"web","gid":2000}],"users":[
		{"name":"www","uid":2001,"group":"web","groups":["disk"],"home":"/srv/www","shell":"/usr/sbin/nologin"},{"name":"plain","shell":"/bin/sh"}]}`}
	wantError(t, h.Done(t.Context(), first), "group web does not exist")
	wantError(t, h.Do(t.Context(), first), "")
	wantError(t, h.Done(t.Context(), first), "")
	if text, _ := h.read("/etc/shadow"); !strings.Contains(text, "www:!:") {
		t.Errorf("the user has a password: %s", text)
	}
	if text, _ := h.read("/etc/passwd"); !strings.Contains(text, "www:x:2001:2000::/srv/www:/usr/sbin/nologin") || !strings.Contains(text, "/nonexistent:/bin/sh") {
		t.Errorf("got accounts %s", text)
	}
	before, _ := h.read("/etc/passwd")
	wantError(t, h.Do(t.Context(), first), "")
	if now, _ := h.read("/etc/passwd"); now != before {
		t.Errorf("Do changed accounts that are right already: %s", now)
	}

	changed := []string{"accounts", `{"users":[{"name":"ops","groups":["root","disk"],"shell":"/bin/sh","home":"/srv/ops"}]}`}
	wantError(t, h.Do(t.Context(), changed), "")
	wantError(t, h.Done(t.Context(), changed), "")
	wantError(t, h.Do(t.Context(), []string{"accounts", `{"users":[{"name":"ops","uid":7}]}`}), "files belong to UIDs")
	wantError(t, h.Do(t.Context(), []string{"accounts", `{"groups":[{"name":"ops","gid":7}]}`}), "files belong to GIDs")
	wantError(t, h.Do(t.Context(), []string{"accounts", `{"users":[{"name":"third","uid":1500}]}`}), "create user third")
}
