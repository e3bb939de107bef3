// SPDX-License-Identifier: Apache-2.0

// Package preflight finds everything that prevents a host from running Slipway's machines or its tests, all
// at once and before anything is changed, and says for each problem what to type. It changes nothing on the
// host; only [Install] does.
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

// Severity says whether a finding prevents what the host is wanted for.
type Severity string

// The severities.
const (
	OK      Severity = "ok"
	Warning Severity = "warning" // works, with the restriction that Detail names
	Problem Severity = "problem" // does not work until Remedy is done
	Fixed   Severity = "fixed"   // was a warning or a problem before Install
)

// Finding is the result of one check. There is one for each check, including those that pass.
type Finding struct {
	ID       string   `json:"id"` // stable: "nft", "disk", "cgroup"
	Severity Severity `json:"severity"`
	What     string   `json:"what"`              // one line
	Detail   string   `json:"detail,omitempty"`  // what it means and what Slipway does about it
	Remedy   string   `json:"remedy,omitempty"`  // the exact command, or what to change
	Package  string   `json:"package,omitempty"` // what Install would install: package names, separated by spaces
	Module   string   `json:"module,omitempty"`  // what Install would load: "br_netfilter"
	Setting  string   `json:"setting,omitempty"` // what Install would set until the next boot: "fs.inotify.max_user_instances=512"
}

// Options say what the host is needed for.
type Options struct {
	Root      string    // "/var/lib/slipway"; need not exist
	NeedBuild bool      // components have to be built from source
	Systemd   bool      // machines will boot with the host's systemd
	Tests     bool      // Slipway's own tests will run here; implies NeedBuild, Systemd and the machines of the largest test
	Controls  int       // number of control planes that will run here
	Workers   int       // number of workers that will run here
	APIPort   uint16    // optional: the port of 127.0.0.1 that a stopped proxy will listen on again
	Built     time.Time // optional: when this program was built; a clock before it is wrong
	Host      string    // optional: directory that contains the host's /proc, /etc, /usr; "/"
}

// check is one group of related checks. It must not change the host.
type check func(context.Context, host, Options) []Finding

// Run makes all checks concurrently. It takes a fraction of a second and returns the findings in a fixed
// order.
func Run(ctx context.Context, o Options) []Finding {
	if o.Tests {
		o.NeedBuild, o.Systemd = true, true
		o.Controls, o.Workers = max(o.Controls, 3), max(o.Workers, 2)
	}
	return runAll(ctx, o,
		checkRights, checkKernel, checkNetwork, checkCgroups, checkPrograms, checkBuild, checkTests,
		checkRoot, checkMemory, checkClock, checkTimeSync, checkHostname, checkModules, checkLimits, checkPort)
}

// runAll returns the findings in the order of the checks.
func runAll(ctx context.Context, o Options, checks ...check) []Finding {
	h := host{root: o.Host}
	if h.root == "" {
		h.root = "/"
	}
	results := make([][]Finding, len(checks))
	var all sync.WaitGroup
	for i, check := range checks {
		all.Go(func() { results[i] = check(ctx, h, o) })
	}
	all.Wait()
	return slices.Concat(results...)
}

// Problems returns the findings that prevent what the host is wanted for.
func Problems(findings []Finding) []Finding {
	var out []Finding
	for _, f := range findings {
		if f.Severity == Problem {
			out = append(out, f)
		}
	}
	return out
}

// MarkFixed returns after with severity Fixed for each finding that is OK and was not OK in before.
func MarkFixed(before, after []Finding) []Finding {
	was := map[string]Severity{}
	for _, f := range before {
		was[f.ID] = f.Severity
	}
	out := slices.Clone(after)
	for i, f := range out {
		if s, known := was[f.ID]; f.Severity == OK && known && s != OK {
			out[i].Severity = Fixed
		}
	}
	return out
}

func one(f Finding) []Finding { return []Finding{f} }
