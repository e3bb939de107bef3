// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"

	"github.com/slipway-project/slipway/internal/machine"
)

// settleInit is what a cluster's new machines boot with: what is asked for, or else what its machines have. One that exists keeps
// what it has.
func settleInit(cluster string, have []machine.Status, wanted machine.InitKind) (machine.InitKind, error) {
	for _, m := range have {
		if wanted == "" {
			wanted = m.Init
		}
		if wanted != m.Init {
			return "", fmt.Errorf("machine %s boots with init %s, and --init says %s: a machine keeps the init that it was made with; leave --init away, or slipway down --name %s first",
				m.Name, m.Init, wanted, cluster)
		}
	}
	return wanted, nil
}
