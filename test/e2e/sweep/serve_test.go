// SPDX-License-Identifier: Apache-2.0

package sweep_test

import (
	"fmt"
	"testing"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// served are the phases of whoever lets a machine in, by the machine's pool; those that share a join lie apart. Each comes before the
// one who joins is told. A control plane signs its certificates itself.
var served = []struct {
	pool   string
	phases []string
}{
	{mainPool, []string{"serve granted", "serve learner added", "serve promote", "serve promoted"}},
	{mainPool, []string{"serve synced", "serve permitted", "serve voter made"}},
	{workerPool, []string{"serve certified"}},
}

// serve crashes the control plane that lets others in.
func (j *joins) serve(t *testing.T) {
	for _, how := range []string{kill, power} {
		for _, one := range served {
			var group []crash
			for _, phase := range one.phases {
				group = append(group, crash{phase, how})
			}
			t.Run(fmt.Sprint(group), func(t *testing.T) { j.serveOne(t, one.pool, group) })
		}
	}
}

func (j *joins) serveOne(t *testing.T, pool string, group []crash) {
	c := j.c.For(t)
	arm(c, group)
	hand := holdPlug(c)
	j.join(t, pool, nil)
	hand.letGo(t)
	if all := left(c); len(all) > 0 {
		t.Errorf("these never came: %v", all)
	}
	arm(c, nil)
	c.AllReady(soon, 1, 1)
	for _, name := range kit.Components() {
		c.Process(name)
	}
}
