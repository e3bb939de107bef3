// SPDX-License-Identifier: Apache-2.0

// Package endpoint holds the hosts and ports of a spec, parsed once. It checks their form only: whether a name is a valid
// DNS name, the caller decides.
//
// Read [Host] and [Endpoint] first.
package endpoint

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Host is an IP address or a name, never both. The zero Host is none. Hosts are comparable with ==.
type Host struct {
	Addr netip.Addr // zero: Name is set
	Name string
}

// ParseHost takes an address without a zone as Addr and any other text as Name.
func ParseHost(text string) Host {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		return Host{Addr: a}
	}
	return Host{Name: text}
}

// String is the text that ParseHost reads.
func (h Host) String() string {
	if h.Addr.IsValid() {
		return h.Addr.String()
	}
	return h.Name
}

// Endpoint is a host and a port. The zero Endpoint is none.
type Endpoint struct {
	Host Host
	Port uint16
}

// Parse reads host:port, where host is an IPv4 address, an IPv6 address in brackets, or a name. The empty text is the
// zero Endpoint.
func Parse(text string) (Endpoint, error) {
	if text == "" {
		return Endpoint{}, nil
	}
	if a, err := netip.ParseAddrPort(text); err == nil && a.Port() != 0 && a.Addr().Zone() == "" {
		return Endpoint{Host{Addr: a.Addr()}, a.Port()}, nil
	}
	name, digits, ok := strings.Cut(text, ":")
	port, err := strconv.ParseUint(digits, 10, 16)
	if !ok || err != nil || port == 0 || name == "" {
		return Endpoint{}, fmt.Errorf("parse endpoint %.80q: want host:port", text)
	}
	return Endpoint{Host{Name: name}, uint16(port)}, nil
}

// IsZero reports whether there is no endpoint.
func (e Endpoint) IsZero() bool { return e == Endpoint{} }

// String is the text that Parse reads.
func (e Endpoint) String() string {
	switch {
	case e.IsZero():
		return ""
	case e.Host.Addr.IsValid():
		return netip.AddrPortFrom(e.Host.Addr, e.Port).String()
	}
	return e.Host.Name + ":" + strconv.Itoa(int(e.Port))
}

// Jump is an SSH server to go through. User and Port may be zero. The zero Jump is none.
type Jump struct {
	User string
	Host string
	Port int
}

// ParseJump reads USER@HOST:PORT, where user and port are optional.
func ParseJump(text string) (Jump, error) {
	j := Jump{Host: text}
	if user, rest, ok := strings.Cut(text, "@"); ok {
		j.User, j.Host = user, rest
		if user == "" {
			return Jump{}, fmt.Errorf("parse jump host %.80q: no user before @", text)
		}
	}
	if host, digits, ok := strings.Cut(j.Host, ":"); ok {
		port, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || port == 0 {
			return Jump{}, fmt.Errorf("parse jump host %.80q: bad port", text)
		}
		j.Host, j.Port = host, int(port)
	}
	if j.Host == "" {
		return Jump{}, fmt.Errorf("parse jump host %.80q: no host", text)
	}
	return j, nil
}

// String is the text that ParseJump reads.
func (j Jump) String() string {
	text := j.Host
	if j.User != "" {
		text = j.User + "@" + text
	}
	if j.Port != 0 {
		text += ":" + strconv.Itoa(j.Port)
	}
	return text
}
