// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/roster"
)

const (
	servingSigner = "kubernetes.io/kubelet-serving"
	nodePrefix    = "system:node:"
	nodesGroup    = "system:nodes"
	longest       = 366 * 24 * time.Hour // that a kubelet may ask for
)

// request is a certificate signing request as far as the decision depends on it. The user and the groups are the API server's
// words, everything else the requester's.
type request struct {
	user    string
	groups  []string
	usages  []string
	expires time.Duration // 0: as the signer thinks fit
	pem     []byte
}

type verdict int

const (
	undecided verdict = iota // nobody has said yet which addresses the node has
	approve
	deny
)

// Machine is what is recorded of a node's machine.
type Machine struct {
	Addresses []netip.Addr
	Key       string // pin of the machine's own key; empty where nobody knows it
}

// judge decides about a kubelet's serving certificate: a node may have one for its own name and the addresses that are recorded
// for it, with a key that is no other node's, for nothing else and for no other purpose. Of a machine without a record nothing
// is known yet. other tells whose a key is already beside this node's.
func judge(r request, known map[string]Machine, other func(node, pin string) string) (verdict, string) {
	node, isNode := strings.CutPrefix(r.user, nodePrefix)
	switch {
	case !isNode || node == "":
		return deny, fmt.Sprintf("the requester %q is no node", r.user)
	case !slices.Contains(r.groups, nodesGroup):
		return deny, fmt.Sprintf("the requester %q is not in the group %s", r.user, nodesGroup)
	case r.expires > longest:
		return deny, fmt.Sprintf("it asks for %s, longer than %s", r.expires, longest)
	}
	if why := usagesWrong(r.usages); why != "" {
		return deny, why
	}
	csr, why := parseRequest(r.pem)
	if why != "" {
		return deny, why
	}
	if why := subjectWrong(csr, node); why != "" {
		return deny, why
	}
	machine, ok := known[node]
	if !ok || len(machine.Addresses) == 0 {
		return undecided, fmt.Sprintf("no addresses are recorded for node %s", node)
	}
	if owner := other(node, roster.Pin(csr.RawSubjectPublicKeyInfo)); owner != "" {
		return deny, fmt.Sprintf("its key is already the key of node %s", owner)
	}
	for _, ip := range csr.IPAddresses {
		a, ok := netip.AddrFromSlice(ip)
		if a.Unmap().IsLoopback() { // every node asks its own for the API
			return deny, fmt.Sprintf("the address %s is every machine's", ip)
		}
		if !ok || !slices.ContainsFunc(machine.Addresses, func(r netip.Addr) bool { return r.Unmap() == a.Unmap() }) {
			return deny, fmt.Sprintf("the address %s is not recorded for node %s", ip, node)
		}
	}
	return approve, "name and addresses are those recorded for the node"
}

// usagesWrong accepts exactly what a kubelet asks for. Key encipherment is for RSA keys only and therefore may be left out.
func usagesWrong(usages []string) string {
	seen := slices.Compact(slices.Sorted(slices.Values(usages)))
	seen = slices.DeleteFunc(seen, func(u string) bool { return u == "key encipherment" })
	if !slices.Equal(seen, []string{"digital signature", "server auth"}) {
		return fmt.Sprintf("the usages are %s; a kubelet serves, and nothing else", strings.Join(usages, ", "))
	}
	return ""
}

func parseRequest(text []byte) (csr *x509.CertificateRequest, wrong string) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, "it is not one PEM certificate request"
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, "it cannot be read as a certificate request"
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, "it is not signed by its own key"
	}
	switch key := csr.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() {
			return nil, "its key is on a weak or strange curve"
		}
	case *rsa.PublicKey:
		if key.N.BitLen() < 2048 {
			return nil, fmt.Sprintf("its RSA key has %d bits, fewer than 2048", key.N.BitLen())
		}
	default:
		return nil, fmt.Sprintf("its key is of an unknown kind %T", key)
	}
	return csr, ""
}

func subjectWrong(csr *x509.CertificateRequest, node string) string {
	switch {
	case csr.Subject.CommonName != nodePrefix+node:
		return fmt.Sprintf("its name is %q, the requester is %q", csr.Subject.CommonName, nodePrefix+node)
	case !slices.Equal(csr.Subject.Organization, []string{nodesGroup}):
		return fmt.Sprintf("its organizations are %q, not %s alone", csr.Subject.Organization, nodesGroup)
	case len(csr.Subject.Names) != 2:
		return "its subject has more than a name and an organization"
	case len(csr.URIs)+len(csr.EmailAddresses) > 0:
		return "it has URIs or e-mail addresses"
	case len(csr.DNSNames)+len(csr.IPAddresses) == 0:
		return "it has no name and no address to serve under"
	}
	for _, name := range csr.DNSNames {
		if name != node {
			return fmt.Sprintf("the DNS name %q is not the node's name %q", name, node)
		}
	}
	return ""
}
