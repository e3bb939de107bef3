// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"

	"github.com/slipway-project/slipway/internal/core/config"
)

func TestAPIAddresses(t *testing.T) {
	t.Parallel()
	c := config.Cluster{LoadBalancer: "192.0.2.1:6443", ExtraSANs: []string{"api.example.org", "::ffff:203.0.113.9", "2001:db8::1"}}
	if got := fmt.Sprint(apiAddresses(c)); got != "[192.0.2.1 203.0.113.9 2001:db8::1]" {
		t.Errorf("reserved: %s", got)
	}
	if got := apiAddresses(config.Cluster{LoadBalancer: "lb.example.org:443"}); len(got) != 0 {
		t.Errorf("names are no addresses: %v", got)
	}
}
