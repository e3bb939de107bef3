// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"

	"github.com/slipway-project/slipway/internal/core/plan"
)

func TestProbeString(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]plan.Probe{
		"nothing":                            {},
		"https://a/healthz to answer 200":    {Kind: plan.ProbeHTTP, URL: "https://a/healthz"},
		"https://a/healthz to return ok":     {Kind: plan.ProbeHTTP, URL: "https://a/healthz", Contains: "ok"},
		"127.0.0.1:1 to accept a connection": {Kind: plan.ProbeTCP, Address: "127.0.0.1:1"},
		"/bin/true now to succeed":           {Kind: plan.ProbeExec, Args: []string{"/bin/true", "now"}},
		"the process to send READY=1":        {Kind: plan.ProbeNotify},
		"/run/x to appear":                   {Kind: plan.ProbeFile, Path: "/run/x"},
	} {
		if got := p.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
