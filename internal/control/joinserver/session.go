// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"fmt"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/rpc"
)

// session is one stream: who is at its other end, and what the audit calls it.
type session struct {
	*Server
	ch    Channel
	peer  rpc.Peer
	key   *ecdsa.PublicKey
	node  admission.Node // zero until a record is known
	entry Entry
}

// begin looks at the key first: it is all the identity that there is.
func (s *Server) begin(ch Channel, call string) (*session, error) {
	peer := ch.Peer()
	e := &session{Server: s, ch: ch, peer: peer, entry: Entry{ID: newID(), Call: call, Peer: peer.Addr, Key: peer.Key}}
	key, ok := peer.Public.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() || peer.Key == "" {
		return e, deny(BadKeyKind, "the machine's key is %T, not ECDSA P-256", peer.Public)
	}
	e.key = key
	return e, nil
}

// claim notes the name that the peer gives itself, until a record says better.
func (e *session) claim(name string) { e.entry.Node = printable(name, maxAuditName) }

// recorded notes whose stream this is.
func (e *session) recorded(n admission.Node) {
	e.node = n
	e.claim(n.Name)
}

func (e *session) audit(reason Reason, detail string) {
	entry := e.entry
	entry.At, entry.Reason, entry.Detail = e.Now(), reason, printable(detail, maxAuditDetail)
	e.Audit(entry)
}

// record asks for the peer's record as it is now.
func (e *session) record(ctx context.Context) (admission.Node, error) {
	node, found, err := e.Records.ByKey(ctx, e.peer.Key)
	switch {
	case err != nil:
		return admission.Node{}, fmt.Errorf("look for the record: %w", err)
	case !found:
		return admission.Node{}, deny(Stranger, "no record has its key")
	case node.Key != e.peer.Key:
		return admission.Node{}, fmt.Errorf("the records gave another machine's record, of node %s", node.Name)
	case node.Removing:
		return admission.Node{}, notYet(node.Name)
	}
	return node, nil
}
