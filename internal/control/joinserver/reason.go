// SPDX-License-Identifier: Apache-2.0

package joinserver

// Reason is why something was decided, for the audit. The reasons of package admission stand beside these, with their own codes.
type Reason string

// What went well.
const (
	Granted   Reason = "granted"   // a ticket was handed out
	Certified Reason = "certified" // a certificate was signed; one entry for each
	Synced    Reason = "synced"    // a node's stream has begun
	Moved     Reason = "moved"     // a worker's record has followed it to another address
	Permitted Reason = "permitted" // a control plane may start its etcd
	Promoted  Reason = "promoted"  // its etcd votes
	Waiting   Reason = "waiting"   // let in later
	Ended     Reason = "ended"     // the other side went away
)

// Why a stream was refused before anything was believed.
const (
	BadOrder    Reason = "order"     // a message that is not due
	TooLarge    Reason = "too-large" // more than a message may hold
	Malformed   Reason = "malformed" // a length or a character that no honest machine sends
	BadProtocol Reason = "protocol"
	BadCluster  Reason = "cluster"
	BadVerifier Reason = "verifier"
	BadAddress  Reason = "address"  // not the one that the connection comes from
	BadKeyKind  Reason = "key-kind" // the machine's key is not ECDSA P-256
	OwnNode     Reason = "own-node" // this machine wants to join itself
)

// Why a proof was refused.
const (
	BadSignature Reason = "signature" // not by this key, over this connection, nonce and hello
	Late         Reason = "late"      // after the nonce's time
	BadEvidence  Reason = "evidence"  // the verifier does not take it
)

// Why a request for a certificate was refused.
const (
	BadWant      Reason = "csr-want"      // not a certificate that this node's plan leaves to us
	BadRequest   Reason = "csr-malformed" // no PKCS#10, or more than it may hold
	BadKey       Reason = "csr-key"       // not ECDSA P-256
	BadProof     Reason = "csr-signature" // the requester does not hold the key
	BadSubject   Reason = "csr-subject"   // names are the cluster's affair
	BadExtension Reason = "csr-extension" // so is all else
	KeyTaken     Reason = "csr-key-taken" // the key serves another purpose or another node
)

// Why a node's stream was refused or ended.
const (
	Stranger        Reason = "stranger"          // no record has the key
	OtherNode       Reason = "other-node"        // the record has another name
	Removed         Reason = "removed"           // the record is gone or is being removed
	NotControlPlane Reason = "not-control-plane" // a worker has no way into etcd
	TooMuch         Reason = "too-much"          // more streams or renewals than a node can need
)

// WrongClock means that nobody was judged: by its clock, this control plane can sign nothing.
const WrongClock Reason = "clock"

// Unavailable means that nobody was judged: something of the cluster does not answer, or the service itself is wrong.
const Unavailable Reason = "unavailable"
