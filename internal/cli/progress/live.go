// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"bytes"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/slipway-project/slipway/internal/report"
)

const (
	up        = "\x1b[%dA"
	clearLine = "\x1b[K"
	clearDown = "\x1b[J"
	reset     = "\x1b[0m"
)

// draw replaces the picture on the screen. Final lines are printed above it and stay. It writes once, to
// avoid flicker.
func (d *Display) draw(picture []string) {
	if len(picture) == 0 && d.drawn == 0 && len(d.held) == 0 {
		return
	}
	width, _ := d.o.Size()
	var b bytes.Buffer
	b.WriteByte('\r')
	if d.drawn > 0 {
		fmt.Fprintf(&b, up, d.drawn)
	}
	for _, line := range d.held {
		b.WriteString(colour(clip(line, width-1)) + clearLine + "\n")
	}
	for _, line := range picture {
		b.WriteString(colour(clip(line, width-1)) + clearLine + "\n")
	}
	b.WriteString(clearDown)
	d.held, d.drawn = nil, len(picture)
	_, _ = d.o.Out.Write(b.Bytes())
}

// picture is the work in progress: a line for each running item, one for all quiet items, one for what is
// waiting.
func (rs *rows) picture(elapsed time.Duration, size func() (width, height int)) []string {
	_, height := size()
	var lines, waits []string
	small, smallReady := 0, 0
	for _, r := range rs.order {
		switch {
		case quiet(r.last):
			small++
			if r.state == finished {
				smallReady++
			}
		case r.state == waiting:
			waits = append(waits, rs.title(r.last))
		case r.state == running, r.state == failing:
			lines = append(lines, liveLine(rs.title(r.last), r.last, elapsed-r.began))
		}
	}
	if more := len(lines) - max(1, height-4); more > 0 {
		lines = append(lines[:len(lines)-more], fmt.Sprintf("%10s and %d more", "", more))
	}
	if smallReady < small {
		lines = append(lines, fmt.Sprintf("%10s %-28s %d/%d ready", "", "files and certificates", smallReady, small))
	}
	if len(waits) > 0 {
		lines = append(lines, fmt.Sprintf("%10s waiting: %s", "", strings.Join(waits, ", ")))
	}
	if len(lines) == 0 {
		lines = append(lines, stamp(elapsed, "working"))
	}
	return lines
}

func liveLine(title string, e report.Event, took time.Duration) string {
	return fmt.Sprintf("%10s %-28s %s", seconds(took), clip(title, 28), doing(e))
}

// colour colours the words that name a state.
func colour(line string) string {
	for _, w := range []struct{ word, code string }{
		{": failing", "\x1b[31m"}, {" failing: ", "\x1b[31m"}, {": ready", "\x1b[32m"}, {": finished", "\x1b[32m"},
	} {
		if before, after, ok := strings.Cut(line, w.word); ok {
			return before + w.code + w.word + reset + after
		}
	}
	return line
}

// clip cuts a line to a number of characters. A longer line would wrap and displace the next picture.
func clip(s string, width int) string {
	if width < 1 || utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:width-1]) + "…"
}
