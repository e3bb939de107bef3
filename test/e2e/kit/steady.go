// SPDX-License-Identifier: Apache-2.0

package kit

import "slices"

// leaders end by themselves when they cannot renew their lease for ten seconds, as on a busy host: that is how they are made.
var leaders = [...]string{"kube-controller-manager", "kube-scheduler"}

// Steady are the processes of units, by name, that end only when somebody ends them: all but those of leaders.
func Steady(units map[string]Unit) map[string]int {
	pids := map[string]int{}
	for name, u := range units {
		if !slices.Contains(leaders[:], name) {
			pids[name] = u.PID
		}
	}
	return pids
}
