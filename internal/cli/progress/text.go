// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/slipway-project/slipway/internal/launch"
)

// seconds writes a duration for people: tenths only where they mean something.
func seconds(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 10*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	}
	return d.Truncate(time.Second).String()
}

// stamp puts the time since the command began before a line.
func stamp(at time.Duration, line string) string { return fmt.Sprintf("%10s %s", seconds(at), line) }

// clean makes one printable line of a text that came from elsewhere: a program's output must not steer the terminal.
func clean(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
}

// wireEvent is an event as programs read it.
type wireEvent struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Time       string       `json:"time"`
	Elapsed    string       `json:"elapsed"`
	Stage      launch.Stage `json:"stage"`
	Machine    string       `json:"machine,omitempty"`
	Item       string       `json:"item,omitempty"`
	Phase      string       `json:"phase,omitempty"`
	Text       string       `json:"text,omitempty"`
	Done       int          `json:"done,omitempty"`
	Total      int          `json:"total,omitempty"`
}

func writeJSON(w io.Writer, e launch.Event, now time.Time) {
	line, err := json.Marshal(wireEvent{
		"slipway.dev/v1alpha1", "Event", now.UTC().Format(time.RFC3339Nano), e.Elapsed.Round(time.Millisecond).String(),
		e.Stage, e.Machine, e.Item, e.Phase, e.Text, e.Done, e.Total,
	})
	if err == nil {
		_, _ = w.Write(append(line, '\n'))
	}
}
