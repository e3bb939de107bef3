// SPDX-License-Identifier: Apache-2.0

// Package progress displays the progress of a command: redrawn lines on a terminal, plain lines elsewhere,
// one JSON object per line for programs. An output that fails does not make the command fail.
//
// Read [Display] first, then rows.go for which events become a line.
//
//	d := progress.New(progress.Options{Out: os.Stderr, Mode: progress.ModeFor(os.Stderr, false, os.Getenv)})
//	result, err := launcher.Up(ctx, bootstrap.UpOptions{Report: d.Event})
//	d.Close()
package progress

import (
	"bytes"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/slipway-project/slipway/internal/report"
)

// Mode is the format of the output.
type Mode int

// The modes.
const (
	Plain    Mode = iota // a line when a component's state changes
	Terminal             // lines redrawn in place
	JSON                 // one object per line and event
)

// ModeFor chooses the mode for an output: lines are redrawn only on a terminal, and neither in CI nor with
// NO_COLOR.
func ModeFor(out io.Writer, json bool, getenv func(string) string) Mode {
	if json {
		return JSON
	}
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || getenv("NO_COLOR") != "" || getenv("CI") != "" || getenv("TERM") == "dumb" {
		return Plain
	}
	return Terminal
}

// Options say where and how to display events.
type Options struct {
	Out  io.Writer
	Mode Mode
	Size func() (width, height int) // optional: the size of the terminal
	Now  func() time.Time           // optional: the clock
}

const (
	frame    = 100 * time.Millisecond // interval between two pictures on a terminal
	beat     = 10 * time.Second       // interval at which plain mode mentions a running component without news
	patience = 2 * time.Second        // a command that takes longer is displayed even if it changes nothing
)

// Display displays events. Its methods may be called from several goroutines.
type Display struct {
	o     Options
	begun time.Time
	end   chan struct{}
	ended sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	rows    rows
	held    []string // lines of a command that has not changed anything yet; dropped if it never does
	changed bool
	drawn   int // number of lines on the screen that the next picture replaces
	partial bytes.Buffer
}

// New returns a display. The caller must call Close.
func New(o Options) *Display {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Size == nil {
		o.Size = func() (int, int) { return terminalSize(o.Out) }
	}
	d := &Display{o: o, begun: o.Now(), end: make(chan struct{}), rows: rows{byKey: map[key]*row{}}}
	if o.Mode != JSON {
		d.ended.Add(1)
		go d.run()
	}
	return d
}

func (d *Display) run() {
	defer d.ended.Done()
	tick := time.NewTicker(frame)
	defer tick.Stop()
	for {
		select {
		case <-d.end:
			return
		case <-tick.C:
			d.tick()
		}
	}
}

// Event displays one event.
func (d *Display) Event(e report.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.o.Mode == JSON {
		writeJSON(d.o.Out, e, d.o.Now())
		return
	}
	line := d.rows.take(e, d.o.Mode == Plain)
	if line != "" {
		d.held = append(d.held, stamp(e.Elapsed, line))
	}
	if isChange(e) {
		d.changed = true
	}
	if d.o.Mode == Plain {
		d.flush()
	}
}

// tick displays what has changed by the passing of time.
func (d *Display) tick() {
	d.mu.Lock()
	defer d.mu.Unlock()
	elapsed := d.o.Now().Sub(d.begun)
	d.changed = d.changed || elapsed >= patience
	if d.o.Mode == Plain {
		for _, line := range d.rows.beats(elapsed) {
			d.held = append(d.held, stamp(elapsed, line))
		}
		d.flush()
		return
	}
	if d.changed {
		d.draw(d.rows.picture(elapsed, d.o.Size))
	}
}

// flush prints the lines held so far, once the command has changed something.
func (d *Display) flush() {
	if !d.changed || len(d.held) == 0 {
		return
	}
	var b bytes.Buffer
	for _, line := range d.held {
		b.WriteString(line + "\n")
	}
	d.held = nil
	_, _ = d.o.Out.Write(b.Bytes())
}

// Close ends the display. Lines about work in progress disappear, lines about completed work stay. It may
// be called twice.
func (d *Display) Close() {
	select {
	case <-d.end:
		return
	default:
		close(d.end)
	}
	d.ended.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.changed {
		d.held = nil
	}
	if d.o.Mode == Terminal && (d.changed || d.drawn > 0) {
		d.draw(nil)
	}
	d.flush()
}

// Write prints whole lines from another source, such as a log, without disturbing the picture.
func (d *Display) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.partial.Write(p)
	for {
		line, err := d.partial.ReadString('\n')
		if err != nil {
			d.partial.Reset()
			d.partial.WriteString(line)
			return len(p), nil
		}
		if d.o.Mode != Terminal {
			_, _ = io.WriteString(d.o.Out, line)
			continue
		}
		d.held, d.changed = append(d.held, line[:len(line)-1]), true
	}
}

func terminalSize(out io.Writer) (width, height int) {
	if f, ok := out.(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
			return w, h
		}
	}
	return 80, 24
}
