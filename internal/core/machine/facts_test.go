// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/core/machine"
)

func TestFactsRoundTrip(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]machine.Facts{
		"zero": {},
		"all": {
			Address: netip.MustParseAddr("192.0.2.1"), CgroupV1: true, OOMScoreAdj: true, MTU: 1450, UpstreamDNS: true,
			ProductUUID: "4c4c4544-0042", MachineID: "0123",
		},
	} {
		if got, err := machine.DecodeFacts(want.Encode()); err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, want)
		}
	}
}

func TestDecodeFacts(t *testing.T) {
	t.Parallel()
	got, err := machine.DecodeFacts([]byte(`{"address":"::ffff:192.0.2.1","factOfTheFuture":{"x":1}}`))
	if want := (machine.Facts{Address: netip.MustParseAddr("192.0.2.1")}); err != nil || got != want {
		t.Errorf("mapped address and unknown field: got %+v, %v, want %+v", got, err, want)
	}
	for name, text := range map[string]string{
		"empty": "", "null": "null", "list": "[]", "two objects": "{}{}", "name as address": `{"address":"localhost"}`, "number as flag": `{"cgroupV1":1}`,
		"too large": `{"x":"` + strings.Repeat("x", machine.MaxFacts) + `"}`,
	} {
		if got, err := machine.DecodeFacts([]byte(text)); err == nil || got != (machine.Facts{}) {
			t.Errorf("%s: got %+v, %v, want an error", name, got, err)
		}
	}
}
