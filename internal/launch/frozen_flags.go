// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/config"
)

// frozenFlags say where a cluster's data is and who it is: with another value the component would begin anew beside the old
// data, or no longer know what it has signed.
func frozenFlags(old, now config.Cluster) []string {
	var out []string
	for _, c := range []struct {
		name     string
		old, now config.Component
		flags    []string
	}{
		{"etcd", old.Etcd, now.Etcd, []string{"data-dir", "wal-dir", "name", "initial-cluster-token"}},
		{"apiserver", old.APIServer, now.APIServer, []string{"etcd-servers", "etcd-prefix", "service-account-issuer", "secure-port", "encryption-provider-config"}},
		{"kubelet", old.Kubelet, now.Kubelet, []string{"root-dir", "hostname-override"}},
	} {
		for _, f := range c.flags {
			was, is := c.old.Flags[f], c.now.Flags[f]
			if was.Origin.From != config.User && is.Origin.From != config.User {
				continue // what it follows from is frozen itself
			}
			if !slices.Equal(was.Values, is.Values) {
				out = append(out, fmt.Sprintf("  spec.components.%s.flags.%s: %s, was %s", c.name, f, shown(is.Values), shown(was.Values)))
			}
		}
	}
	return out
}

func shown(values []string) string {
	if len(values) == 0 {
		return "not set"
	}
	return strings.Join(values, ",")
}
