// SPDX-License-Identifier: Apache-2.0

package sweep_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// served are the phases of whoever lets a control plane in. Each comes before the one who joins is told.
var served = []string{
	"serve granted", "serve certified", "serve synced", "serve learner added", "serve permitted", "serve promote", "serve voter made", "serve promoted",
}

// serve crashes the control plane that lets another one in.
func (j *joins) serve(t *testing.T) {
	var all []crash
	for _, how := range []string{kill, power} {
		for _, phase := range served {
			all = append(all, crash{phase, how})
		}
	}
	for _, group := range groups(all, together()) {
		t.Run(fmt.Sprint(group), func(t *testing.T) {
			c := j.c.For(t)
			before := time.Now()
			arm(c, group)
			hand := holdPlug(c)
			j.join(t, mainPool, nil)
			hand.letGo(t)
			if all := left(c); len(all) > 0 {
				t.Errorf("these never came: %v", all)
			}
			arm(c, nil)
			c.AllReady(soon, 1, 1)
			for _, name := range kit.Components() {
				c.Process(name)
			}
			t.Logf("with all looks it took %.1f s", time.Since(before).Seconds())
		})
	}
}
