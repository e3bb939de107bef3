// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/slipway-project/slipway/internal/core/pin"
)

// ApproveServing approves or denies the certificate signing requests for kubelets' serving certificates until ctx ends. It denies a
// wrong request with the reason in the request and in an event. A request of a node that known does not return stays pending and is
// judged again after a value from changed. It returns only the context's error.
func (c *Client) ApproveServing(ctx context.Context, known func() map[string]Machine, changed <-chan struct{}) error {
	a := approver{Client: c, known: known, reported: map[string]bool{}, keys: map[string]keyOf{}}
	waiting := onChange(func(why string) { c.log.Debug("certificate signing requests cannot be watched", "why", why) })
	q := query{
		resource: requests, fields: fields.OneTermEqualSelector("spec.signerName", servingSigner), again: changed, first: approved,
		listed: func(begins bool) {
			if begins {
				clear(a.keys)
			}
		},
	}
	return c.follow(ctx, q, waiting, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		if o == nil {
			return false, nil
		}
		if gone {
			delete(a.reported, o.GetName())
			delete(a.keys, o.GetName())
			return false, nil
		}
		return false, a.handle(ctx, o)
	})
}

// approver decides about requests. Only follow calls it, one call at a time.
type approver struct {
	*Client
	known    func() map[string]Machine
	reported map[string]bool  // names of pending requests that were logged
	keys     map[string]keyOf // keys of the approved requests that still exist, by request
}

// keyOf is a key and its node.
type keyOf struct {
	node string
	key  pin.Pin
}

// handle judges a pending request, logs once why it stays pending, and remembers the keys of approved
// requests.
func (a *approver) handle(ctx context.Context, o *unstructured.Unstructured) error {
	if approved(o) {
		a.remember(o)
		return nil
	}
	pending, err := a.decide(ctx, o)
	if pending != "" && !a.reported[o.GetName()] {
		a.reported[o.GetName()] = true
		a.log.Warn("serving certificate request stays pending", "request", o.GetName(), "why", pending)
	}
	return err
}

func approved(o *unstructured.Unstructured) bool {
	ok, _ := condition(o, "Approved")
	return ok
}

// remember records the key of an approved request, so that no other node gets a certificate with the same
// key.
func (a *approver) remember(o *unstructured.Unstructured) {
	r := requestOf(o)
	if csr, wrong := parseRequest(r.pem); wrong == "" {
		a.keys[o.GetName()] = keyOf{strings.TrimPrefix(r.user, nodePrefix), pin.Of(csr.RawSubjectPublicKeyInfo)}
	}
}

// otherOwner returns another node that has this key: as the key of its machine or of a recently approved serving certificate. It
// returns "" if there is none.
func (a *approver) otherOwner(known map[string]Machine, node string, key pin.Pin) string {
	for name, m := range known {
		if m.Key == key && name != node {
			return name
		}
	}
	for _, k := range a.keys {
		if k.key == key && k.node != node {
			return k.node
		}
	}
	return ""
}

// decide judges one request and writes the verdict. pending is the reason why it cannot be judged yet.
func (a *approver) decide(ctx context.Context, o *unstructured.Unstructured) (pending string, err error) {
	if len(maps(o.Object, "status", "conditions")) > 0 || str(o.Object, "status", "certificate") != "" {
		return "", nil
	}
	r, known := requestOf(o), a.known()
	v, why := judge(r, known, func(node string, key pin.Pin) string { return a.otherOwner(known, node, key) })
	condition := map[string]any{"status": "True", "message": why, "lastUpdateTime": time.Now().UTC().Format(time.RFC3339)}
	switch v {
	case approve:
		condition["type"], condition["reason"] = "Approved", "SlipwayApproved"
	case deny:
		condition["type"], condition["reason"] = "Denied", "SlipwayDenied"
	case undecided:
		return why, nil
	}
	decided := o.DeepCopy()
	if err := unstructured.SetNestedSlice(decided.Object, []any{condition}, "status", "conditions"); err != nil {
		return "", fmt.Errorf("decide certificate signing request %s: %w", o.GetName(), err)
	}
	if _, err := a.dyn.Resource(requests).Update(ctx, decided, metav1.UpdateOptions{FieldManager: manager}, "approval"); err != nil {
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "", fmt.Errorf("decide certificate signing request %s: %w", o.GetName(), err)
	}
	if v == approve {
		a.remember(o)
		a.log.Info("serving certificate approved", "request", o.GetName(), "user", r.user)
		return "", nil
	}
	a.log.Warn("serving certificate denied", "request", o.GetName(), "user", r.user, "why", why)
	a.createEvent(ctx, o, why)
	return "", nil
}

// requestOf extracts the fields that judge needs. Missing or malformed fields become zero values, which judge
// denies.
func requestOf(o *unstructured.Unstructured) request {
	r := request{user: str(o.Object, "spec", "username")}
	r.groups, _, _ = unstructured.NestedStringSlice(o.Object, "spec", "groups")
	r.usages, _, _ = unstructured.NestedStringSlice(o.Object, "spec", "usages")
	if s, ok, _ := unstructured.NestedInt64(o.Object, "spec", "expirationSeconds"); ok {
		r.expires = time.Duration(s) * time.Second
	}
	r.pem, _ = base64.StdEncoding.DecodeString(str(o.Object, "spec", "request")) // invalid base64 is reported as invalid PEM
	return r
}

// createEvent reports a denial in an event, so that `kubectl get events` shows it. Errors are ignored: the request contains the
// same text.
func (c *Client) createEvent(ctx context.Context, o *unstructured.Unstructured, why string) {
	now := time.Now().UTC().Format(time.RFC3339)
	event := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata": map[string]any{"generateName": o.GetName() + ".", "namespace": metav1.NamespaceDefault},
		"involvedObject": map[string]any{
			"apiVersion": o.GetAPIVersion(), "kind": o.GetKind(), "name": o.GetName(), "uid": string(o.GetUID()),
		},
		"type": "Warning", "reason": "ServingCertificateDenied", "message": why, "count": int64(1),
		"source": map[string]any{"component": manager}, "firstTimestamp": now, "lastTimestamp": now,
	}}
	if _, err := c.dyn.Resource(events).Namespace(metav1.NamespaceDefault).Create(ctx, event, metav1.CreateOptions{}); err != nil {
		c.log.Debug("event not created", "request", o.GetName(), "why", reason(err))
	}
}

const (
	servingSigner = "kubernetes.io/kubelet-serving"
	nodePrefix    = "system:node:"
	nodesGroup    = "system:nodes"
	maxExpiration = 366 * 24 * time.Hour
)

// request has the fields of a certificate signing request that the decision depends on. The API server vouches for the user and
// the groups; the rest comes from the requester.
type request struct {
	user    string
	groups  []string
	usages  []string
	expires time.Duration // 0: the signer's default
	pem     []byte
}

// verdict is the result of judge.
type verdict int

const (
	undecided verdict = iota // the node's addresses are not known yet
	approve
	deny
)

// Machine is what the cluster's records know of a node's machine.
type Machine struct {
	Addresses []netip.Addr
	Key       pin.Pin // pin of the machine's own key; "" if it is not known
}

// judge decides about a kubelet's serving certificate. A node may have one for exactly its own name and its recorded addresses, for
// serving only, with a key that no other node has. Without recorded addresses it does not decide. otherOwner returns another node
// that has the key, or "".
func judge(r request, known map[string]Machine, otherOwner func(node string, key pin.Pin) string) (verdict, string) {
	node, isNode := strings.CutPrefix(r.user, nodePrefix)
	switch {
	case !isNode || node == "":
		return deny, fmt.Sprintf("the requester %q is not a node", r.user)
	case !slices.Contains(r.groups, nodesGroup):
		return deny, fmt.Sprintf("the requester %q is not in the group %s", r.user, nodesGroup)
	case r.expires > maxExpiration:
		return deny, fmt.Sprintf("it requests a lifetime of %s, longer than %s", r.expires, maxExpiration)
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
	if owner := otherOwner(node, pin.Of(csr.RawSubjectPublicKeyInfo)); owner != "" {
		return deny, fmt.Sprintf("its key already belongs to node %s", owner)
	}
	for _, ip := range csr.IPAddresses {
		a, ok := netip.AddrFromSlice(ip)
		if a.Unmap().IsLoopback() { // clients on any node would accept the certificate at their own loopback address
			return deny, fmt.Sprintf("the address %s is a loopback address", ip)
		}
		if !ok || !slices.ContainsFunc(machine.Addresses, func(r netip.Addr) bool { return r.Unmap() == a.Unmap() }) {
			return deny, fmt.Sprintf("the address %s is not recorded for node %s", ip, node)
		}
	}
	return approve, "name and addresses match the node's record"
}

// usagesWrong accepts exactly the usages that a kubelet requests. Key encipherment is optional, because it is for RSA keys only.
func usagesWrong(usages []string) string {
	seen := slices.Compact(slices.Sorted(slices.Values(usages)))
	seen = slices.DeleteFunc(seen, func(u string) bool { return u == "key encipherment" })
	if !slices.Equal(seen, []string{"digital signature", "server auth"}) {
		return fmt.Sprintf("its usages are %s; a kubelet may only request digital signature and server auth", strings.Join(usages, ", "))
	}
	return ""
}

// parseRequest parses a PEM certificate request and checks its signature and the strength of its key. wrong
// is the reason for a denial, or "".
func parseRequest(text []byte) (csr *x509.CertificateRequest, wrong string) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, "it is not exactly one PEM certificate request"
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, "its certificate request cannot be parsed"
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, "it is not signed by its own key"
	}
	switch key := csr.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() {
			return nil, "its key is not on the curve P-256 or P-384"
		}
	case *rsa.PublicKey:
		if key.N.BitLen() < 2048 {
			return nil, fmt.Sprintf("its RSA key has %d bits, fewer than 2048", key.N.BitLen())
		}
	default:
		return nil, fmt.Sprintf("its key has the unsupported type %T", key)
	}
	return csr, ""
}

// subjectWrong returns the reason why the names in a request are not exactly those of the node, or "". It
// does not check IP addresses.
func subjectWrong(csr *x509.CertificateRequest, node string) string {
	switch {
	case csr.Subject.CommonName != nodePrefix+node:
		return fmt.Sprintf("its common name is %q, but the requester is %q", csr.Subject.CommonName, nodePrefix+node)
	case !slices.Equal(csr.Subject.Organization, []string{nodesGroup}):
		return fmt.Sprintf("its organizations are %q, want only %s", csr.Subject.Organization, nodesGroup)
	case len(csr.Subject.Names) != 2:
		return "its subject has more than a common name and an organization"
	case len(csr.URIs)+len(csr.EmailAddresses) > 0:
		return "it has URIs or email addresses"
	case len(csr.DNSNames)+len(csr.IPAddresses) == 0:
		return "it has neither DNS names nor IP addresses"
	}
	for _, name := range csr.DNSNames {
		if name != node {
			return fmt.Sprintf("the DNS name %q is not the node's name %q", name, node)
		}
	}
	return ""
}
