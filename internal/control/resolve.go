// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// ResolveUDP asks one DNS server one name, as a pod's resolver would.
func ResolveUDP(ctx context.Context, server netip.Addr, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond) // a lost packet is asked again soon
	defer cancel()
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", netip.AddrPortFrom(server, 53).String())
	}}
	addrs, err := resolver.LookupNetIP(ctx, "ip4", name)
	if err != nil {
		return err
	}
	if len(addrs) == 0 {
		return fmt.Errorf("%s: no address", name)
	}
	return nil
}
