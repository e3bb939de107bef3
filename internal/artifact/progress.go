// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"bytes"
	"strings"
	"sync"
	"time"
)

// Phase is what is being done to a component.
type Phase string

// The phases, in the order they happen.
const (
	Wait     Phase = "wait"     // another process builds; Line says who
	Download Phase = "download" // Done counts modules
	Compile  Phase = "compile"  // Done counts packages, of Total at most: cached ones are not counted
	Link     Phase = "link"
	Pack     Phase = "image"
	Copy     Phase = "copy"     // import: Done counts blobs
	Finished Phase = "finished" // the component or image is in the store
)

// Event tells how a build goes. Events of one component come in order; those of
// two components mix.
type Event struct {
	Component string // name and version: "etcd 3.6.16"; an image reference; empty for the whole bundle
	Binary    string // which of the component's binaries, if it matters
	Phase     Phase
	Done      int
	Total     int           // 0 if not known
	Line      string        // last line of output
	Elapsed   time.Duration // since this component was begun
}

// reporter stamps events of one component and passes them on.
type reporter struct {
	component string
	begun     time.Time
	send      func(Event)
}

func (r reporter) report(e Event) {
	e.Component = r.component
	e.Elapsed = time.Since(r.begun)
	r.send(e)
}

// inTurn makes calls of f exclude each other. A nil f becomes one that does
// nothing.
func inTurn(f func(Event)) func(Event) {
	if f == nil {
		return func(Event) {}
	}
	var mu sync.Mutex
	return func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		f(e)
	}
}

// lines is a writer that hands on whole lines and keeps the last of them for an
// error message. It is used by one process's output at a time.
type lines struct {
	each func(line string)
	rest []byte
	tail []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		text := string(line)
		l.tail = append(l.tail, text)
		l.tail = l.tail[max(0, len(l.tail)-20):]
		l.each(text)
		l.rest = rest
	}
}

// String gives the last lines, without the chatter of a run that went well.
func (l *lines) String() string {
	var kept []string
	for _, line := range append(l.tail, string(l.rest)) {
		if line != "" && !strings.HasPrefix(line, "go: downloading ") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}
