// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/reconcile"
)

// reasons tells of each item that is not ready what it waits for, since when, what went wrong last, and who provides it. The
// machine is named where it is not the first one.
func reasons(w io.Writer, items []reconcile.Status, on string, now time.Time) {
	byRef := map[string]reconcile.Status{}
	for _, s := range items {
		byRef[s.Ref] = s
	}
	for _, s := range items {
		since := ""
		if !s.Since.IsZero() {
			since = fmt.Sprintf(" for %s (since %s)", ago(now.Sub(s.Since)), s.Since.Format(time.TimeOnly))
		}
		fmt.Fprintf(w, "  %s  %s%s\n", s.Ref, s.Phase, since)
		for _, line := range because(s, byRef, on) {
			fmt.Fprintf(w, "      %-12s %s\n", line[0]+":", line[1])
		}
	}
}

// because is why an item is not ready, as pairs of question and answer.
func because(s reconcile.Status, others map[string]reconcile.Status, on string) [][2]string {
	var out [][2]string
	if s.Phase == reconcile.Doing && s.Error != "" {
		out = append(out, [2]string{"doing", onceMore(s)})
	} else if s.What != "" && s.Phase == reconcile.Doing {
		out = append(out, [2]string{"doing", s.What})
	} else if s.What != "" {
		out = append(out, [2]string{"waiting for", strings.TrimPrefix(oneLine(s.What), "waiting for ")})
	}
	if s.Error != "" {
		out = append(out, [2]string{"last error", oneLine(s.Error)})
	}
	if s.Step != nil && s.Step.Why != "" && s.Phase != reconcile.Waiting {
		out = append(out, [2]string{"last step", string(s.Step.Verb) + ", because " + s.Step.Why})
	}
	provider := s.Who
	if need, ok := others[s.What]; ok { // another item: it is the one to look at
		provider = fmt.Sprintf("%s, which is %s", need.Ref, need.Phase)
	}
	if provider == "" {
		provider = usualProvider(s.Ref, on)
	}
	return append(out, [2]string{"provided by", provider})
}

// usualProvider is who brings an item to ready when nobody else was named.
func usualProvider(ref, on string) string {
	if on != "" {
		on = " --machine " + on
	}
	for _, kind := range []string{"unit/", "staticpod/"} {
		if unit, ok := strings.CutPrefix(ref, kind); ok {
			return unit + " itself: see slipway logs " + unit + on
		}
	}
	return "the agent: see slipway logs agent" + on
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
