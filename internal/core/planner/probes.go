// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// The probes follow the configuration: a user who moves a port moves the question, too.

// health is the authenticated health probe of a component that serves https with a certificate of the cluster CA.
func health(c spec.Component, port string) plan.Probe {
	return plan.Probe{
		Kind: plan.ProbeHTTP, URL: "https://" + reach(flag(c, "bind-address", "127.0.0.1")) + ":" + flag(c, "secure-port", port) + "/healthz",
		CA: config.ClusterCA + ".crt",
	}
}

// etcdProbe asks the first metrics URL; without any, etcd answers where its clients ask.
func etcdProbe(c spec.Component) plan.Probe {
	url, _, _ := strings.Cut(flag(c, "listen-metrics-urls", "https://127.0.0.1:2379"), ",")
	p := plan.Probe{Kind: plan.ProbeHTTP, URL: url + "/readyz"}
	if strings.HasPrefix(url, "https:") {
		p.CA, p.Cert, p.Key = config.EtcdCA+".crt", config.EtcdHealthcheck+".crt", config.EtcdHealthcheck+".key"
	}
	return p
}

func kubeletProbe(c spec.Component) plan.Probe {
	port := setting(c, "healthzPort", "10248")
	if port == "0" { // the user does not want it to be asked
		return plan.Probe{}
	}
	return plan.Probe{Kind: plan.ProbeHTTP, URL: "http://" + reach(setting(c, "healthzBindAddress", "127.0.0.1")) + ":" + port + "/healthz"}
}

func proxyProbe(c spec.Component) plan.Probe {
	at := setting(c, "healthzBindAddress", "0.0.0.0:10256")
	if a, err := netip.ParseAddrPort(at); err == nil {
		at = fmt.Sprintf("%s:%d", reach(a.Addr().String()), a.Port())
	}
	return plan.Probe{Kind: plan.ProbeHTTP, URL: "http://" + at + "/healthz"}
}

// reach is the host part of a URL that reaches a server on this machine which listens on the address.
func reach(host string) string {
	switch a, err := netip.ParseAddr(host); {
	case err != nil:
		return host
	case a.IsUnspecified():
		return "127.0.0.1"
	case a.Is6():
		return "[" + host + "]"
	}
	return host
}

// setting is a top-level scalar of the configuration file, or what Kubernetes takes when the file does not say.
func setting(c spec.Component, key, otherwise string) string {
	switch v := c.Config[key].(type) {
	case nil:
		return otherwise
	case string:
		if v == "" {
			return otherwise
		}
		return v
	default:
		return fmt.Sprint(v)
	}
}
