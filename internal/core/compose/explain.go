// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"fmt"
	"strings"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// Explain documents a field of the spec. Flags are those of the newest release, with the values that a cluster of one
// machine has.
func Explain(path string) (spec.Description, error) {
	text := []byte("apiVersion: " + spec.APIVersion + "\nkind: " + spec.Kind + "\nmetadata: {name: dev}\n")
	standard, release, problems, err := Cluster("default", text, Options{})
	if err != nil || len(problems) > 0 {
		return spec.Description{}, fmt.Errorf("complete the default spec: %v: %w", problems, err)
	}
	return spec.Explain(path, func(component string) map[string]spec.Description {
		program := config.Program(component)
		known := release.Flags(program)
		if known == nil {
			return nil
		}
		settings, _ := standard.ComponentOf(component)
		texts := make(map[string]spec.Description, len(known))
		for _, f := range known {
			d := spec.Description{Type: flagType(f), Text: "Flag --" + f.Name + " of " + program + ".", Default: "the default of " + program + "; slipway does not set it"}
			if f.Deprecated {
				d.Text += " It is deprecated or hidden."
			}
			if f.Exits {
				d.Text += " With it the program does something else and exits: a spec cannot set it."
			}
			if values := settings.Flags[f.Name]; len(values) > 0 {
				d.Default = strings.Join(values, ", ")
			}
			texts[f.Name] = d
		}
		return texts
	})
}

func flagType(f catalog.Flag) string {
	switch {
	case f.Value == catalog.IntValue:
		return "whole number"
	case f.Value == catalog.DurationValue:
		return "duration, such as 1m30s"
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
