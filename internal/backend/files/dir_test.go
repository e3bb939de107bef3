// SPDX-License-Identifier: Apache-2.0

package files

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// The owner of a directory is looked up at each observation.
func TestDirOwnedByAccount(t *testing.T) {
	t.Parallel()
	daemon, err := user.Lookup("daemon")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and an account daemon")
	}
	group, err := user.LookupGroupId(daemon.Gid)
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t, t.TempDir(), nil)
	path := filepath.Join(t.TempDir(), "a")
	plain := plan.Dir{Path: path, Mode: 0o750}
	make1(t, h, plain)
	owned := plan.Dir{Path: path, Mode: 0o750, Owner: "daemon", Group: group.Name}
	wantState(t, h, owned, plan.State{Existence: plan.Present, Detail: fmt.Sprintf("owner 0, want %s; group 0, want %s", daemon.Uid, daemon.Gid)})
	make1(t, h, owned)
	wantState(t, h, owned, plan.State{Existence: plan.Present, Matches: true, Ready: true})
	wantState(t, h, plain, plan.State{Existence: plan.Present, Detail: fmt.Sprintf("owner %s, want 0", daemon.Uid)})

	for _, nobody := range []plan.Dir{{Path: path, Owner: "no-such-user"}, {Path: path, Group: "no-such-group"}} {
		if s, err := h.Observe(t.Context(), entry(nobody)); err == nil || !strings.Contains(err.Error(), "no-such-") || s.Existence != plan.Unknown {
			t.Errorf("unknown account: got %+v, %v", s, err)
		}
	}
}
