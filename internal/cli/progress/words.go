// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/launch"
)

// plainName is how an item is called when nobody has to find it in the plan.
func plainName(item string) string {
	for prefix, word := range map[string]string{"unit/": "", "staticpod/": "", "control/node/": "node ", "control/addon/": "add-on "} {
		if name, ok := strings.CutPrefix(item, prefix); ok {
			return word + name
		}
	}
	if item == "control/dns" {
		return "cluster DNS"
	}
	return item
}

func ending(r *row) string {
	e := r.last
	if e.Stage == launch.StageConverge || e.Stage == launch.StageBundle {
		text := e.Phase
		if took := e.Elapsed - r.began; took >= 10*time.Millisecond {
			text += ", " + seconds(took)
		}
		return text
	}
	switch {
	case e.Text == "":
		return e.Phase
	case e.Phase == "warning":
		return e.Phase + ": " + e.Text
	}
	return e.Text
}

// doing is what a running row does, in words.
func doing(e launch.Event) string {
	text := e.Phase
	switch {
	case e.Stage == launch.StageBundle && e.Total > 0:
		text += fmt.Sprintf(" %d/%d%s", e.Done, e.Total, counted(e.Phase))
	case e.Stage == launch.StageBundle && e.Done > 0:
		text += fmt.Sprintf(" %d%s", e.Done, counted(e.Phase))
	case e.Stage == launch.StageConverge && e.Phase == "doing":
		return stepping(e.Text)
	case e.Stage == launch.StageConverge && e.Phase == "starting" && e.Text != "":
		text += ", waiting for " + strings.TrimPrefix(e.Text, "waiting for ")
	case e.Text != "":
		text += ": " + e.Text
	}
	return strings.TrimPrefix(text, ": ")
}

// stepping is a plan's verb in the words of one who watches.
func stepping(verb string) string {
	switch verb {
	case "create":
		return "starting"
	case "replace":
		return "replacing"
	case "remove":
		return "removing"
	}
	return verb
}

func counted(phase string) string {
	switch phase {
	case "download":
		return " modules"
	case "compile":
		return " packages"
	case "copy":
		return " files"
	}
	return ""
}
