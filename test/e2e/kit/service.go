// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// Poller asks a URL from within the machine's network again and again.
type Poller struct {
	stop func()
	done chan struct{}

	mu      sync.Mutex // guards the fields below
	answers int
	last    time.Time
	gap     time.Duration // the longest time without an answer
	err     error         // the last one
}

// Poll begins to ask, each time over a new connection.
func (c *Cluster) Poll(url string) *Poller {
	return c.poll(&http.Client{
		Transport: &http.Transport{DialContext: c.Dial, DisableKeepAlives: true},
		Timeout:   time.Second,
	}, url)
}

func (c *Cluster) poll(client *http.Client, url string) *Poller {
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.T.Context())) // parts of a test hand it on
	p := &Poller{stop: cancel, done: make(chan struct{}), last: time.Now()}
	go func() {
		defer close(p.done)
		defer client.CloseIdleConnections()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				p.note(ask(ctx, client, url), time.Now())
			}
		}
	}()
	return p
}

func ask(ctx context.Context, client *http.Client, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	reply, err := client.Do(r)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	_, err = io.Copy(io.Discard, reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", reply.Status)
	}
	return err
}

func (p *Poller) note(err error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gap = max(p.gap, now.Sub(p.last))
	if err != nil {
		p.err = err
		return
	}
	p.answers++
	p.last = now
}

// Gap is the longest time without an answer since the last Reset, and the last error in it.
func (p *Poller) Gap() (gap time.Duration, answers int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.gap, time.Since(p.last)), p.answers, p.err
}

// Reset begins to count anew.
func (p *Poller) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gap, p.answers, p.err, p.last = 0, 0, nil, time.Now()
}

// Stop ends it.
func (p *Poller) Stop() {
	p.stop()
	<-p.done
}
