// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/sshhost"
)

func TestWhyUsersAreNotRoot(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		user  string
		err   error
		id    string
		wants []string
	}{
		"a password":   {"ann", &sshhost.ExitError{Code: 1, Stderr: "sudo: a password is required\n"}, "root", []string{"sudo asks user ann for a password", "ann ALL=(ALL) NOPASSWD: ALL"}},
		"no sudo":      {"ann", &sshhost.ExitError{Code: 127, Stderr: "sh: 1: exec: sudo: not found\n"}, "root", []string{"there is no sudo", "install sudo", "log in as root"}},
		"a terminal":   {"ann", &sshhost.ExitError{Code: 1, Stderr: "sudo: sorry, you must have a tty to run sudo\n"}, "root", []string{"with a terminal only", "Defaults:ann !requiretty"}},
		"no sudoer":    {"ann", &sshhost.ExitError{Code: 1, Stderr: "ann is not in the sudoers file."}, "root", []string{"may not become root: ann is not in the sudoers file", "NOPASSWD"}},
		"root already": {"root", &sshhost.ExitError{Code: 127, Stderr: "uname: not found"}, "shell", []string{"uname: not found"}},
		"a lost line":  {"ann", errors.New("run on m: EOF"), "shell", []string{"EOF"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &probe{}
			p.noRoot(&sshhost.Host{Target: sshhost.Target{User: tc.user}}, fmt.Errorf("run on m: %w", tc.err))
			if len(p.problems) != 1 || p.problems[0].ID != tc.id {
				t.Fatalf("problems %+v", p.problems)
			}
			text := fmt.Sprintf("%+v", p.problems[0])
			for _, want := range tc.wants {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in %s", want, text)
				}
			}
		})
	}
}
