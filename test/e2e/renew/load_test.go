// SPDX-License-Identifier: Apache-2.0

package renew_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// load is a client that writes all the time and retries failed requests, as client programs do.
type load struct {
	writer *kit.Writer
	stop   func()
	done   chan struct{}

	mu    sync.Mutex // guards the fields below
	asked int
	again []string      // attempts that failed and were repeated
	lost  []string      // requests that failed in all attempts
	worst time.Duration // longest request, with all its attempts
}

// attempts of one request, with growing pauses: some seconds in total.
const attempts = 8

func startLoad(c *kit.Cluster, prefix string) *load {
	c.T.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.T.Context()))
	l := &load{writer: c.WriteAPI(prefix + "-kept"), stop: cancel, done: make(chan struct{})}
	client := c.APIClient(true, 5*time.Second)
	go func() {
		defer close(l.done)
		defer client.CloseIdleConnections()
		for i := 0; ctx.Err() == nil; i++ {
			l.request(ctx, client, fmt.Sprintf("%s-%d", prefix, i))
			pause(ctx, 20*time.Millisecond)
		}
	}()
	return l
}

// request creates one object. AlreadyExists is a success of a retry, because the answer to an earlier attempt was lost.
func (l *load) request(ctx context.Context, client *http.Client, name string) {
	begun := time.Now()
	for n := range attempts {
		err := kit.WriteConfigMap(ctx, client, name)
		if ctx.Err() != nil {
			return
		}
		ok := err == nil || n > 0 && strings.Contains(err.Error(), "AlreadyExists")
		l.mu.Lock()
		switch {
		case ok:
			l.asked++
			l.worst = max(l.worst, time.Since(begun))
		case n == attempts-1:
			l.lost = append(l.lost, fmt.Sprintf("%s after %s: %v", name, time.Since(begun).Round(time.Millisecond), err))
		default:
			l.again = append(l.again, fmt.Sprintf("%s: %v", time.Now().Format(time.TimeOnly), err))
		}
		l.mu.Unlock()
		if ok {
			return
		}
		pause(ctx, 50*time.Millisecond<<n)
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (l *load) end(c *kit.Cluster) {
	c.T.Helper()
	l.stop()
	<-l.done
	l.writer.Stop()
	l.writer.CheckAcked(c)
	c.T.Logf("%d requests, %d retries, the slowest took %s", l.asked, len(l.again), l.worst.Round(time.Millisecond))
	for _, why := range l.again {
		c.T.Logf("retried: %.300s", why)
	}
	if len(l.lost) > 0 || l.asked == 0 {
		c.T.Errorf("requests: got %d successes and lost %v, want none lost", l.asked, l.lost)
	}
}

// watch polls all API servers at the same time.
type watch struct {
	c    *kit.Cluster
	stop func()
	done chan struct{}
	down map[string]int // how many times each was down
	both []string       // times when more than one was down
}

func startWatch(c *kit.Cluster) *watch {
	c.T.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.T.Context()))
	w := &watch{c: c, stop: cancel, done: make(chan struct{}), down: map[string]int{}}
	names := mains(c)
	clients := make([]*http.Client, len(names))
	for i, m := range names {
		clients[i] = c.On(m).APIClient(false, 3*time.Second)
	}
	go func() {
		defer close(w.done)
		gone := make([]bool, len(names))
		for ctx.Err() == nil {
			w.look(ctx, names, clients, gone)
			pause(ctx, 50*time.Millisecond)
		}
	}()
	return w
}

func (w *watch) look(ctx context.Context, names []string, clients []*http.Client, gone []bool) {
	now := answers(ctx, clients, gone)
	if ctx.Err() != nil {
		return
	}
	for i, is := range now {
		if is && !gone[i] {
			w.down[names[i]]++
		}
	}
	copy(gone, now)
	if count(now) < 2 {
		return
	}
	var down []string
	for i, still := range answers(ctx, clients, now) { // the first answers may be seconds apart
		if still && now[i] {
			down = append(down, names[i])
		}
	}
	if len(down) > 1 && ctx.Err() == nil {
		w.both = append(w.both, time.Now().Format(time.TimeOnly)+" "+strings.Join(down, " "))
	}
}

// answers polls all servers at the same time and returns which are down. was says which were down before.
func answers(ctx context.Context, clients []*http.Client, was []bool) []bool {
	now := make([]bool, len(clients))
	var asking sync.WaitGroup
	for i := range clients {
		asking.Go(func() { now[i] = refused(ctx, clients[i], was[i]) })
	}
	asking.Wait()
	return now
}

func count(these []bool) (n int) {
	for _, is := range these {
		if is {
			n++
		}
	}
	return n
}

// refused reports whether a server is down: nothing listens or, if it was down before, it is not ready yet. A slow server is not down.
func refused(ctx context.Context, client *http.Client, was bool) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, kit.API+"/readyz", nil)
	if err != nil {
		return false
	}
	reply, err := client.Do(r)
	if err != nil {
		var slow net.Error
		return errors.Is(err, syscall.ECONNREFUSED) || was && !(errors.As(err, &slow) && slow.Timeout())
	}
	_ = reply.Body.Close()
	return was && reply.StatusCode != http.StatusOK
}

// end stops the watch and returns how many times each API server was down.
func (w *watch) end() map[string]int {
	w.c.T.Helper()
	w.stop()
	<-w.done
	if len(w.both) > 0 {
		w.c.T.Errorf("API servers that were down at the same time: got %s, want none", strings.Join(w.both, "; "))
	}
	return w.down
}
