// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// answerLimit: a lost packet is asked for again soon.
const answerLimit = 300 * time.Millisecond

// ResolveUDP asks one DNS server for the address of one name (with its final dot), as a pod's resolver would. The error is
// the reason why there is no answer, in few words.
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
		return fmt.Errorf("%s answers what is no DNS: %w", server, err)
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
		return fmt.Errorf("%s is silent", server)
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%s has no endpoint yet", server) // kube-proxy rejects what nobody serves
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s refuses", server)
	}
	return err
}
