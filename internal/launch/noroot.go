// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"strings"

	"github.com/slipway-project/slipway/internal/sshhost"
)

// noRoot says why the first script did not run, which is about becoming root where the login user is not.
func (p *probe) noRoot(h *sshhost.Host, err error) {
	var exit *sshhost.ExitError
	if !errors.As(err, &exit) || h.User == "" || h.User == sshhost.Root {
		p.wrong("shell", err.Error(), "", "")
		return
	}
	what, remedy := whyNotRoot(h.User, exit)
	p.wrong("root", what, "slipway never asks for a password", remedy)
}

// whyNotRoot translates what sudo, or the shell that has none, says.
func whyNotRoot(user string, e *sshhost.ExitError) (what, remedy string) {
	said := strings.TrimSpace(e.Stderr)
	rule := fmt.Sprintf("on the machine, as root: echo '%s ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/slipway", user)
	switch {
	case e.Code == notFound:
		return fmt.Sprintf("user %s is not root, and there is no sudo", user), "log in as root (spec.ssh.user), or install sudo there, and then: " + rule
	case strings.Contains(said, "have a tty"):
		return fmt.Sprintf("user %s may use sudo with a terminal only: %s", user, said), fmt.Sprintf("on the machine, as root: echo 'Defaults:%s !requiretty' > /etc/sudoers.d/slipway-tty", user)
	case strings.Contains(said, "a password is required"):
		return fmt.Sprintf("sudo asks user %s for a password", user), rule
	}
	return fmt.Sprintf("user %s may not become root: %s", user, said), rule
}
