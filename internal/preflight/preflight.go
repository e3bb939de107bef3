// SPDX-License-Identifier: Apache-2.0

// Package preflight finds everything that keeps a host from running Slipway's machines, all at once, before anything is
// touched, and says for each thing what to type. It changes nothing on the host; only [Install] does.
//
// Read [Run] and [Finding] first.
//
//	findings := preflight.Run(ctx, preflight.Options{Root: "/var/lib/slipway"})
//	→ {ID: "nft", Severity: problem, What: "nft is missing", Remedy: "apt-get install -y nftables", Package: "nftables"}, …
package preflight

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Severity says what a finding means for going on.
type Severity string

// The severities.
const (
	OK      Severity = "ok"
	Warning Severity = "warning" // works, with the restriction that Detail names
	Problem Severity = "problem" // does not work until Remedy is done
	Mended  Severity = "fixed"   // was not well before Install
)

// Finding is the answer of one check. There is one for each check, also when all is well.
type Finding struct {
	ID       string   `json:"id"` // fixed: "nft", "disk", "cgroup"
	Severity Severity `json:"severity"`
	What     string   `json:"what"`              // one line
	Detail   string   `json:"detail,omitempty"`  // what it means and what Slipway does about it
	Remedy   string   `json:"remedy,omitempty"`  // the exact command, or what to change
	Package  string   `json:"package,omitempty"` // what Install would install, words of the package manager
	Module   string   `json:"module,omitempty"`  // what Install would load: "br_netfilter"
	Setting  string   `json:"setting,omitempty"` // what Install would set until the next boot: "fs.inotify.max_user_instances=512"
}

// Options say what the host is needed for.
type Options struct {
	Root      string    // "/var/lib/slipway"; need not exist
	NeedBuild bool      // components have to be built from source
	Systemd   bool      // machines are to boot with the host's systemd
	Controls  int       // control planes that are to run here
	Workers   int       // and workers beside them
	APIPort   uint16    // optional: the port of 127.0.0.1 that a stopped proxy will want again
	Built     time.Time // optional: when this program was built; a clock before it is wrong
	Host      string    // optional: folder that holds the host's /proc, /etc, /usr; "/"
}

// Run makes all checks side by side. It takes a fraction of a second and returns the findings in a fixed order.
func Run(ctx context.Context, o Options) []Finding {
	if o.Host == "" {
		o.Host = "/"
	}
	h := host{root: o.Host}
	checks := []func(context.Context, host, Options) []Finding{
		checkRights, checkKernel, checkNetwork, checkCgroups, checkPrograms, checkBuild,
		checkRoot, checkMemory, checkClock, checkTimeSync, checkHostname, checkModules, checkLimits, checkPort,
	}
	return sideBySide(ctx, checks, h, o)
}

// sideBySide returns the findings in the order of the checks.
func sideBySide(ctx context.Context, checks []func(context.Context, host, Options) []Finding, h host, o Options) []Finding {
	results := make([][]Finding, len(checks))
	var all sync.WaitGroup
	for i, check := range checks {
		all.Go(func() { results[i] = check(ctx, h, o) })
	}
	all.Wait()
	return slices.Concat(results...)
}

// Problems are the findings that must be dealt with.
func Problems(findings []Finding) []Finding {
	var out []Finding
	for _, f := range findings {
		if f.Severity == Problem {
			out = append(out, f)
		}
	}
	return out
}

func one(f Finding) []Finding { return []Finding{f} }
