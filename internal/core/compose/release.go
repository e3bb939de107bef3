// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
)

// releaseFor is the catalogue's release as a configuration needs it.
func releaseFor(r catalog.Release) (config.Release, error) {
	pause, err := r.Image("pause")
	if err != nil {
		return config.Release{}, err
	}
	dns, err := r.Image("coredns")
	if err != nil {
		return config.Release{}, err
	}
	kube, err := r.Image("kube")
	if err != nil {
		return config.Release{}, err
	}
	etcd, err := r.Image("etcd")
	if err != nil {
		return config.Release{}, err
	}
	known := config.Release{
		Kubernetes: r.Kubernetes, Minor: r.Minor(), PauseImage: pause.Name, CoreDNSImage: dns.Name, KubeImage: kube.Name, EtcdImage: etcd.Name,
		Flags: map[string]map[string]config.FlagRule{}, Fields: map[string]map[string]string{},
	}
	for _, program := range config.Programs() {
		known.Flags[program] = flagRules(r.Flags(program))
		if fields := r.Fields(program); fields != nil {
			known.Fields[program] = make(map[string]string, len(fields))
			for path, kind := range fields {
				known.Fields[program][path] = string(kind)
			}
		}
	}
	if gates := r.Gates(); gates != nil {
		known.Gates = make(map[string]config.GateRule, len(gates))
		for _, g := range gates {
			known.Gates[g.Name] = config.GateRule{Locked: g.Locked, Programs: g.Programs}
		}
	}
	return known, nil
}

// flagRules is nil where the catalogue has no table: then nothing is checked.
func flagRules(flags []catalog.Flag) map[string]config.FlagRule {
	if flags == nil {
		return nil
	}
	rules := make(map[string]config.FlagRule, len(flags))
	for _, f := range flags {
		rules[f.Name] = config.FlagRule{
			Bool: f.Kind == catalog.BoolFlag, Single: f.Kind == catalog.OneFlag,
			Int: f.Value == catalog.IntValue, Duration: f.Value == catalog.DurationValue, Deprecated: f.Deprecated, Exits: f.Exits,
		}
	}
	return rules
}
