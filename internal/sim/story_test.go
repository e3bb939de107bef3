// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// verbose puts the agents' logs and all steps into the log of a failed run.
const verbose = false

var seedFlag = flag.Uint64("seed", 0, "replay this one seed")

// story is a run that somebody has written down.
type story struct {
	name  string
	lines []line
}

type line struct {
	n     int // in the file
	words []string
}

// parse reads a story; # begins a remark. Words in quotes may hold spaces.
func parse(name, text string) (story, error) {
	s := story{name: name}
	for i, raw := range strings.Split(text, "\n") {
		words, err := split(raw)
		if err != nil {
			return s, fmt.Errorf("%s:%d: %w", name, i+1, err)
		}
		if len(words) == 0 {
			continue
		}
		if _, ok := commands()[words[0]]; !ok && words[0] != "machines" {
			return s, fmt.Errorf("%s:%d: there is no word %q", name, i+1, words[0])
		}
		s.lines = append(s.lines, line{i + 1, words})
	}
	if len(s.lines) == 0 || s.lines[0].words[0] != "machines" || len(s.lines[0].words) != 2 {
		return s, fmt.Errorf("%s: a story begins with machines N", name)
	}
	return s, nil
}

func split(raw string) (words []string, err error) {
	for rest := strings.TrimSpace(raw); rest != "" && !strings.HasPrefix(rest, "# "); rest = strings.TrimSpace(rest) { // #2 is a number
		var word string
		if rest[0] == '"' {
			inside, after, ok := strings.Cut(rest[1:], `"`)
			if !ok {
				return nil, errors.New("a quote has no end")
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

// teller carries a story out in its world.
type teller struct {
	*world
	ctx   context.Context //nolint:containedctx // the whole run's
	work  *sync.WaitGroup
	inits map[string]*outcome

	picture map[string]string // that was remembered

	flags    map[string]string // of units, as the operator wants them now; guarded by the world's mu, as the next ones
	revision int
	handing  int // plans on their way
}

// run tells the story with a seed, and gives what went wrong. It is called in a bubble.
func (s story) run(t testing.TB, seed uint64, prepare func(*world)) (w *world) {
	t.Helper()
	n, err := strconv.Atoi(s.lines[0].words[1])
	if err != nil || n < 1 || n > 9 {
		t.Fatalf("%s: machines %s", s.name, s.lines[0].words[1])
	}
	w = newWorld(t, seed, n)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	tell := &teller{world: w, ctx: ctx, work: &work, inits: map[string]*outcome{}}
	tell.foresee(s)
	for _, m := range w.order {
		m.start()
	}
	if prepare != nil {
		prepare(w)
	}
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

// foresee prepares what the operator knows before: which machines are in the spec, and which is to be the first.
func (t *teller) foresee(s story) {
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

// tellAll ends the log with where each machine stands.
func (w *world) tellAll() {
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

func readStories(t testing.TB) (all []story) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.story")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		s, err := parse(strings.TrimSuffix(filepath.Base(f), ".story"), string(text))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// TestStories tells each story with the first seed and one of the next eight that the sample selects.
func TestStories(t *testing.T) {
	t.Parallel()
	second := 2 + newSample(t).dice("stories").Uint64N(8)
	for _, s := range readStories(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			seeds := []uint64{1, second}
			if testing.Short() {
				seeds = seeds[:1]
			}
			if *seedFlag != 0 {
				seeds = []uint64{*seedFlag}
			}
			for _, seed := range seeds {
				bubble(t, fmt.Sprintf("story %s, seed %d", s.name, seed), func(t *testing.T) *world { return s.run(t, seed, nil) })
			}
		})
	}
}

// bubble runs a world under its own clock, and reports what went wrong with how to see it again.
func bubble(t *testing.T, what string, run func(t *testing.T) *world) {
	t.Helper()
	begun := time.Now()
	ended := make(chan struct{})
	defer close(ended)
	time.AfterFunc(time.Minute, func() {
		select {
		case <-ended:
		default:
			fmt.Fprintf(os.Stderr, "sim: %s hangs since %s\n", what, begun.Format(time.TimeOnly))
		}
	})
	text := ""
	synctest.Test(t, func(t *testing.T) {
		if w := run(t); w != nil {
			text = w.failed()
		}
	})
	if text != "" {
		t.Errorf("%s: %s", what, text)
	}
}
