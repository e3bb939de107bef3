// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"
)

// The Deployment of the cluster DNS. The cluster is up only when it is available.
const (
	dnsNamespace  = "kube-system"
	dnsDeployment = "coredns"
)

const (
	queryPause     = 20 * time.Millisecond // before the first answer, since a new DNS becomes ready within seconds
	slowQueryPause = time.Second           // after fastQueries queries without an answer
	fastQueries    = 3000
	queryInterval  = 10 * time.Second // while DNS answers or is not available
	maxUnanswered  = 3                // queries in a row before a DNS that has answered counts as failed: packets get lost
)

// dns keeps the item of the cluster DNS: it is ready while the Deployment is available and answers through its Service address.
func (r Role) dns(ctx context.Context, cluster Controller, d Desired) error {
	needs := r.dnsUnits()
	for _, a := range d.AddOns { // before the add-on with the DNS Deployment is applied, an earlier Deployment answers
		for _, o := range a.Objects {
			if o.Kind() == "Deployment" && o.Namespace() == dnsNamespace && o.Name() == dnsDeployment {
				needs = append(needs, itemAddOn(a.Name))
			}
		}
	}
	i, err := r.after(ctx, itemDNS, "CoreDNS and kube-proxy", needs...)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	a := availability{reason: "deployment " + dnsNamespace + "/" + dnsDeployment + " has not been observed", changed: make(chan struct{}, 1)}
	group.Go(func() error { return cluster.WatchDeployment(ctx, dnsNamespace, dnsDeployment, a.set) })
	group.Go(func() error { return r.queryDNS(ctx, d, &a, i) })
	return group.Wait()
}

// queryDNS sets the item from the Deployment's availability and from queries, until ctx ends.
func (r Role) queryDNS(ctx context.Context, d Desired, a *availability, i *item) error {
	server, name := netip.AddrPortFrom(d.Config.DNSAddress, 53), "kubernetes.default.svc."+d.Config.ClusterDomain+"."
	timer := time.NewTimer(0)
	defer timer.Stop()
	for unanswered := 0; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.changed:
		case <-timer.C:
		}
		if reason := a.get(); reason != "" {
			i.set(reason)
			unanswered = maxUnanswered // one more counts as a failure until DNS has answered again
			timer.Reset(queryInterval)
			continue
		}
		switch err := r.Resolve(ctx, server, name); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			unanswered = 0
			i.set("")
			timer.Reset(queryInterval)
		default:
			if unanswered++; unanswered >= maxUnanswered || !i.wasReady {
				i.set(err.Error())
			}
			pause := queryPause
			if unanswered >= fastQueries {
				pause = slowQueryPause
			}
			timer.Reset(pause)
		}
	}
}

// availability is the reason why the DNS Deployment is not available. It is safe for concurrent use.
type availability struct {
	changed chan struct{} // has a value when the reason has changed

	mu     sync.Mutex // guards reason
	reason string
}

func (a *availability) set(reason string) {
	a.mu.Lock()
	a.reason = reason
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

func (a *availability) get() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reason
}

// answerLimit is short, so that a query whose packet is lost is soon repeated.
const answerLimit = 300 * time.Millisecond

// ResolveUDP asks a DNS server for the address of a name (with its final dot), as a pod's resolver does. The error is the reason
// for a status.
func ResolveUDP(ctx context.Context, server netip.AddrPort, name string) error {
	query, err := question(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", server.String())
	if err != nil {
		return dnsReason(server, err)
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := conn.Write(query); err != nil {
		return dnsReason(server, err)
	}
	answer := make([]byte, 1500)
	n, err := conn.Read(answer)
	if err != nil {
		return dnsReason(server, err)
	}
	return check(server, answer[:n])
}

func question(name string) ([]byte, error) {
	n, err := dnsmessage.NewName(name)
	if err != nil {
		return nil, fmt.Errorf("ask for %q: %w", name, err)
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 1, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: n, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	return m.Pack()
}

func check(server netip.AddrPort, answer []byte) error {
	var m dnsmessage.Message
	switch err := m.Unpack(answer); {
	case err != nil:
		return fmt.Errorf("%s sends an invalid answer: %w", server, err)
	case m.RCode != dnsmessage.RCodeSuccess:
		return fmt.Errorf("%s answers %s", server, m.RCode)
	case len(m.Answers) == 0:
		return fmt.Errorf("%s answers without an address", server)
	}
	return nil
}

func dnsReason(server netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s does not answer", server)
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%s has no endpoint yet", server) // kube-proxy rejects connections to a Service without endpoints
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s refuses the query", server)
	}
	return err
}
