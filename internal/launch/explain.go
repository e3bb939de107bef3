// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"strings"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// Explain tells what a field of the spec means. Flags are those of the newest release, with the values that a cluster of one
// machine has.
func Explain(path string) (spec.Description, error) {
	standard, err := Complete("default", []byte("apiVersion: "+spec.APIVersion+"\nkind: "+spec.Kind+"\nmetadata: {name: dev}\n"), "")
	if err != nil {
		return spec.Description{}, err
	}
	return spec.Explain(path, func(component string) map[string]spec.Description {
		program := config.Program(component)
		return flagTexts(standard.Release.Flags(program), program, flagsOf(standard.Config, component))
	})
}

func flagsOf(c config.Cluster, component string) map[string]config.Flag {
	return map[string]config.Component{
		"etcd": c.Etcd, "apiserver": c.APIServer, "controllerManager": c.ControllerManager, "scheduler": c.Scheduler,
		"kubelet": c.Kubelet, "kubeProxy": c.KubeProxy, "containerd": c.Containerd,
	}[component].Flags
}

// flagTexts is nil where the catalogue has no table.
func flagTexts(known []catalog.Flag, program string, set map[string]config.Flag) map[string]spec.Description {
	if known == nil {
		return nil
	}
	texts := make(map[string]spec.Description, len(known))
	for _, f := range known {
		d := spec.Description{Type: flagType(f), Text: "Flag --" + f.Name + " of " + program + ".", Default: program + "'s own; slipway does not set it"}
		if f.Deprecated {
			d.Text += " It is deprecated or hidden."
		}
		if f.Exits {
			d.Text += " With it the program does something else and ends: a spec cannot set it."
		}
		if values := set[f.Name].Values; len(values) > 0 {
			d.Default = strings.Join(values, ", ")
		}
		texts[f.Name] = d
	}
	return texts
}

func flagType(f catalog.Flag) string {
	switch {
	case f.Value == catalog.IntValue:
		return "whole number"
	case f.Value == catalog.DurationValue:
		return "length of time, such as 1m30s"
	}
	switch f.Kind {
	case catalog.BoolFlag:
		return "true or false"
	case catalog.OneFlag:
		return "text"
	case catalog.ManyFlag:
		return "text, or a list of text"
	case catalog.AnyFlag:
	}
	return "text"
}
