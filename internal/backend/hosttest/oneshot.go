// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
)

func oneshotRunsOnce(t *testing.T, k kit) {
	for _, kind := range []plan.ProbeKind{plan.ProbeNone, plan.ProbeFile} {
		name := "job" + string(kind)
		f := plan.File{Path: filepath.Join(k.Dir, name+".input"), Mode: 0o600, Content: "1"}
		u := k.Unit(name, Behaviour{Oneshot: true, Ready: kind, Exit: true})
		u.Inputs = []plan.Ref{plan.RefOf(f)}
		k.converge(f)
		k.want(u, missing())
		k.do(plan.Create, u)
		k.want(u, fine())
		if verb := k.converge(u); verb != "" {
			t.Errorf("%s: %q although it has run", name, verb)
		}
		k.wantStarts(name, 1)
		f.Content = "2"
		k.converge(f)
		k.wantDetail(u, plan.RefOf(f).String()+" changed")
		k.converge(u)
		k.wantStarts(name, 2)
	}
}

func oneshotTellsWhyItFailed(t *testing.T, k kit) {
	u := k.Unit("job", Behaviour{Oneshot: true, Exit: true, Code: 7, Say: "no disk"})
	err := k.tryDo(t.Context(), plan.Create, u)
	if err == nil || !strings.Contains(err.Error(), "exited with 7") || !strings.Contains(err.Error(), "no disk") {
		t.Errorf("error %v, want the code and the last words", err)
	}
	k.want(u, missing())
}

func oneshotEndsWithContext(t *testing.T, k kit) {
	u := k.Unit("job", Behaviour{Oneshot: true, IgnoreTerm: true})
	u.StopTimeout = time.Minute // nobody waits for it
	wantEndsSoon(t, func(ctx context.Context) error { return k.tryDo(ctx, plan.Create, u) })
	if n := k.Running("job"); n != 0 {
		t.Errorf("%d processes still run", n)
	}
	k.want(u, missing())
}
