// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/slipway-project/slipway/internal/report"
)

// seconds formats a duration for people, with tenths below 10 s.
func seconds(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 10*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	}
	return d.Truncate(time.Second).String()
}

// stamp prefixes a line with the time since the command started.
func stamp(at time.Duration, line string) string { return fmt.Sprintf("%10s %s", seconds(at), line) }

// clean turns foreign text into one line without control characters: a program's output must not control
// the terminal.
func clean(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
}

// wireEvent is an event in the JSON output.
type wireEvent struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Time       string       `json:"time"`
	Elapsed    string       `json:"elapsed"`
	Stage      report.Stage `json:"stage"`
	Machine    string       `json:"machine,omitempty"`
	Item       string       `json:"item,omitempty"`
	Phase      string       `json:"phase,omitempty"`
	Text       string       `json:"text,omitempty"`
	Done       int          `json:"done,omitempty"`
	Total      int          `json:"total,omitempty"`
}

func writeJSON(w io.Writer, e report.Event, now time.Time) {
	line, err := json.Marshal(wireEvent{
		"slipway.dev/v1alpha1", "Event", now.UTC().Format(time.RFC3339Nano), e.Elapsed.Round(time.Millisecond).String(),
		e.Stage, e.Machine, e.Item, e.Phase, e.Text, e.Done, e.Total,
	})
	if err == nil {
		_, _ = w.Write(append(line, '\n'))
	}
}

// plainName is an item's name for people, without its kind.
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

// ending describes a row that has finished.
func ending(r *row) string {
	e := r.last
	if e.Stage == report.StageConverge || e.Stage == report.StageBundle {
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

// doing describes what a running row does.
func doing(e report.Event) string {
	text := e.Phase
	switch {
	case e.Stage == report.StageBundle && e.Total > 0:
		text += fmt.Sprintf(" %d/%d%s", e.Done, e.Total, unitOf(e.Phase))
	case e.Stage == report.StageBundle && e.Done > 0:
		text += fmt.Sprintf(" %d%s", e.Done, unitOf(e.Phase))
	case e.Stage == report.StageConverge && e.Phase == "doing":
		return participle(e.Text)
	case e.Stage == report.StageConverge && e.Phase == "starting" && e.Text != "":
		text += ", waiting for " + strings.TrimPrefix(e.Text, "waiting for ")
	case e.Text != "":
		text += ": " + e.Text
	}
	return strings.TrimPrefix(text, ": ")
}

// participle turns a plan's verb into what is happening.
func participle(verb string) string {
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

// unitOf is what a phase of a build counts.
func unitOf(phase string) string {
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
