// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// Another up had the answer, and the machine has ended its init service: what the agent says is enough.
func TestFoundedWithoutItsInitService(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		lock string
		want bool
	}{
		"committed": {committedPhase, true},
		"claimed":   {"claimed", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, machines := newUp(t, UpOptions{Wait: time.Minute})
			m := alone(u)[0]
			socket := machines.socket(m.Name, agentSock)
			if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
				t.Fatal(err)
			}
			serve(t, socket, &scripted{facts: &nodev1.FactsReply{Facts: coremachine.Facts{Address: netip.MustParseAddr("10.89.0.10")}.Encode(), Lock: tc.lock}})
			m.agent, m.phase, m.key = dial(t, socket), "claimed", pin.Pin("sha256:"+strings.Repeat("0a", 32))
			u.founding = founding{ID: requestID("up"), Machine: m.Name, Secret: "secret"}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if !tc.want {
				ctx, cancel = context.WithTimeout(ctx, 3*time.Second)
				defer cancel()
			}
			err := u.founded(ctx, machines, m)
			if (err == nil) != tc.want || (m.phase == committedPhase) != tc.want {
				t.Errorf("phase %s, %v", m.phase, err)
			}
		})
	}
}

// A machine that was reset is free and has no secret: the way out must not cost the component store.
func TestFoundRefuses(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{"": "free now", "dev-main-7": "given the init secret to dev-main-7"} {
		u, machines := newUp(t, UpOptions{})
		all := alone(u)
		u.founding.Machine = given
		err := u.found(t.Context(), machines, all, all[0])
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "slipway down --name dev, then") {
			t.Errorf("%q: %v", given, err)
		}
	}
}
