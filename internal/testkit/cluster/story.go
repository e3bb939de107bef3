// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// verbose adds the agents' logs and all steps to the log of a failed run.
const verbose = false

// Story is the script of a run.
type Story struct {
	name  string
	lines []line
}

func (s Story) String() string { return s.name }

type line struct {
	n     int // in the file
	words []string
}

// Parse reads a story. # starts a comment, and words in quotes may contain spaces.
func Parse(name, text string) (Story, error) {
	s := Story{name: name}
	for i, raw := range strings.Split(text, "\n") {
		words, err := split(raw)
		if err != nil {
			return s, fmt.Errorf("%s:%d: %w", name, i+1, err)
		}
		if len(words) == 0 {
			continue
		}
		if _, ok := commands()[words[0]]; !ok && words[0] != "machines" {
			return s, fmt.Errorf("%s:%d: unknown command %q", name, i+1, words[0])
		}
		s.lines = append(s.lines, line{i + 1, words})
	}
	if len(s.lines) == 0 || s.lines[0].words[0] != "machines" || len(s.lines[0].words) != 2 {
		return s, fmt.Errorf("%s: the first line must be: machines N", name)
	}
	return s, nil
}

func split(raw string) (words []string, err error) {
	for rest := strings.TrimSpace(raw); rest != "" && !strings.HasPrefix(rest, "# "); rest = strings.TrimSpace(rest) { // #2 is a number
		var word string
		if rest[0] == '"' {
			inside, after, ok := strings.Cut(rest[1:], `"`)
			if !ok {
				return nil, errors.New("a quote is not closed")
			}
			word, rest = inside, after
		} else if i := strings.IndexAny(rest, " \t"); i >= 0 {
			word, rest = rest[:i], rest[i:]
		} else {
			word, rest = rest, ""
		}
		words = append(words, word)
	}
	return words, nil
}

// teller runs the commands of a story in its world.
type teller struct {
	*World
	ctx   context.Context //nolint:containedctx // that of the whole run
	work  *sync.WaitGroup
	inits map[string]*outcome

	picture map[string]string // taken by the last remember

	flags    map[string]string // of units, in the operator's last plan; guarded by the world's mu, as are the next two
	revision int
	handing  int // plans that have not been handed over yet
}

// Run runs the story with a seed, under a clock of its own, and has the given crashes happen. It reports everything
// that went wrong as errors of t, with the log and with what, which says how to run it again.
func (s Story) Run(t *testing.T, what string, seed uint64, crashes ...*Crash) (w *World) {
	t.Helper()
	begun := time.Now()
	ended := make(chan struct{})
	defer close(ended)
	time.AfterFunc(time.Minute, func() {
		select {
		case <-ended:
		default:
			fmt.Fprintf(os.Stderr, "cluster: %s has been running since %s\n", what, begun.Format(time.TimeOnly))
		}
	})
	synctest.Test(t, func(t *testing.T) { w = s.run(t, seed, crashes) })
	if text := w.failed(); text != "" {
		t.Errorf("%s: %s", what, text)
	}
	return w
}

func (s Story) run(t testing.TB, seed uint64, crashes []*Crash) *World {
	t.Helper()
	n, err := strconv.Atoi(s.lines[0].words[1])
	if err != nil || n < 1 || n > 9 {
		t.Fatalf("%s: got %s machines, want 1 to 9", s.name, s.lines[0].words[1])
	}
	w := newWorld(t, seed, n)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	tell := &teller{World: w, ctx: ctx, work: &work, inits: map[string]*outcome{}}
	tell.foresee(s)
	for _, m := range w.order {
		m.start()
	}
	w.arm(crashes)
	for _, l := range s.lines[1:] {
		w.note("%d: %s", l.n, strings.Join(l.words, " "))
		if err := commands()[l.words[0]](tell, l.words[1:]); err != nil {
			w.wrong("%s:%d: %s: %v", s.name, l.n, strings.Join(l.words, " "), err)
			break
		}
		if w.failed() != "" {
			break
		}
	}
	w.tellAll()
	cancel()
	w.end()
	work.Wait()
	return w
}

// foresee prepares what the operator knows in advance: the machines in the spec and the init secret of the first one.
func (t *teller) foresee(s Story) {
	counts := map[string]int{}
	add := func(machine, pool string) {
		for _, n := range t.prepared {
			if n.machine == machine {
				return
			}
		}
		t.prepared = append(t.prepared, member{fmt.Sprintf("dev-%s-%d", pool, counts[pool]), pool, machine})
		counts[pool]++
	}
	t.planes = s.planes()
	for _, l := range s.lines {
		switch {
		case l.words[0] == "init" && len(l.words) > 1 && t.machines[l.words[1]] != nil:
			add(l.words[1], poolMain)
			if slices.Contains(l.words, "no-secret") {
				continue
			}
			if err := t.machines[l.words[1]].prepare(); err != nil {
				t.wrong("prepare %s: %v", l.words[1], err)
			}
		case l.words[0] == "join" && len(l.words) == 3 || l.words[0] == "join" && len(l.words) > 3 && l.words[3] == "via":
			add(l.words[1], pool(l.words[2]))
		}
	}
}

func pool(role string) string {
	if role == "control-plane" {
		return poolMain
	}
	return poolWorker
}

// tellAll ends the log with the state of each machine.
func (w *World) tellAll() {
	for _, m := range w.order {
		state := "off"
		if a := m.running(); a != nil {
			state = a.lock.State().String()
		}
		w.note("%s at the end: %s, ready %t: %s", m.name, state, m.ready(), m.says())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for pin, c := range w.clusters {
		w.noteLocked("cluster %.20s: %s", pin, last(c.etcd.History()))
	}
}
