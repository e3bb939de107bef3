// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"net/netip"
	"testing"

	"github.com/slipway-project/slipway/internal/core/endpoint"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]endpoint.Endpoint{
		"":                     {},
		"api.example.org:6443": {Host: endpoint.Host{Name: "api.example.org"}, Port: 6443},
		"192.0.2.1:443":        {Host: endpoint.Host{Addr: netip.MustParseAddr("192.0.2.1")}, Port: 443},
		"[2001:db8::1]:443":    {Host: endpoint.Host{Addr: netip.MustParseAddr("2001:db8::1")}, Port: 443},
	} {
		got, err := endpoint.Parse(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("Parse(%q): got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"api.example.org", ":443", "a:0", "a:65536", "a:b", "a:", "192.0.2.1:0", "2001:db8::1"} {
		if got, err := endpoint.Parse(text); err == nil {
			t.Errorf("Parse(%q): got %v, want an error", text, got)
		}
	}
}

func TestParseHost(t *testing.T) {
	t.Parallel()
	for text, isAddress := range map[string]bool{"192.0.2.1": true, "2001:db8::1": true, "fe80::1%eth0": false, "*.example.org": false, "": false} {
		h := endpoint.ParseHost(text)
		if h.Addr.IsValid() != isAddress || h.String() != text {
			t.Errorf("ParseHost(%q): got %+v, want an address: %t", text, h, isAddress)
		}
	}
}

func TestParseJump(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]endpoint.Jump{
		"gate":                {Host: "gate"},
		"ada@gate.example:23": {User: "ada", Host: "gate.example", Port: 23},
		"gate:23":             {Host: "gate", Port: 23},
	} {
		got, err := endpoint.ParseJump(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("ParseJump(%q): got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "@gate", "ada@", "gate:", "gate:0", "gate:x"} {
		if got, err := endpoint.ParseJump(text); err == nil {
			t.Errorf("ParseJump(%q): got %v, want an error", text, got)
		}
	}
}
