// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/netip"
	"os"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/node/rosterfile"
	"github.com/slipway-project/slipway/internal/rpc"
)

// Roster finds the component stores of the control planes in the roster on this machine's disk.
type Roster struct {
	Path   string // of the roster
	JoinCA string // certificate, which signs the roster and the stores' certificates
	Port   uint16 // of the stores
}

// Places returns the stores of all control planes other than this machine. A machine that is in no cluster has none to ask, nor
// does one that is the only control plane.
func (r Roster) Places() ([]netip.AddrPort, error) {
	joinCA, err := r.joinCA()
	if err != nil {
		return nil, err
	}
	current, err := rosterfile.Load(r.Path, joinCA)
	if err != nil {
		return nil, err
	}
	own := ownAddresses()
	var places []netip.AddrPort
	for _, join := range current.Join {
		if !own[join.Addr()] {
			places = append(places, netip.AddrPortFrom(join.Addr(), r.Port))
		}
	}
	return places, nil
}

// TLS trusts this cluster's control plane at that address, and no other server.
func (r Roster) TLS(to netip.Addr) (*tls.Config, error) {
	joinCA, err := r.joinCA()
	if err != nil {
		return nil, err
	}
	return rpc.ClientTLS(rpc.ClientOptions{CA: joinCA, ServerName: to.String()}), nil
}

func (r Roster) joinCA() (*x509.Certificate, error) {
	text, err := os.ReadFile(r.JoinCA)
	if err != nil {
		return nil, err
	}
	return pki.Certificate(r.JoinCA, text)
}

// ownAddresses are this machine's addresses. If they are unknown, the machine asks itself in vain, and then the next store.
func ownAddresses() map[netip.Addr]bool {
	own := map[netip.Addr]bool{}
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr().Unmap()] = true
		}
	}
	return own
}
