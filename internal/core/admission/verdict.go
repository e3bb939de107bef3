// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"net/netip"

	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/wait"
)

// Request is what a machine asks with. Key and Address are proven by its connection, Evidence by a verifier; the rest it says.
type Request struct {
	Key         pin.Pin // pin of the machine's key
	ClaimedNode string  // the name that it believes to have; may be empty
	Kubernetes  string  // the version that it would run, "1.36.4"; empty: whatever it is given
	Address     netip.Addr
	Facts       machine.Facts
	Evidence    Evidence
	Gone        netip.Addr // the machine with this key, or with this address, is known not to be alive at this address; zero: nobody can say so
}

// Evidence is what a verifier has found proven, beside the key.
type Evidence struct {
	TokenID string // the machine knows the text of this token; empty: it has proven no more than its key
}

// Policy is what the cluster allows.
type Policy struct {
	Cluster       string // its name: the first part of new nodes' names
	APIServer     string // version of the API server, "1.36.4"
	PodCIDR       netip.Prefix
	NodePodPrefix int
	ServiceCIDR   netip.Prefix
	Pools         map[string]Pool
	Reserved      []netip.Addr // where clients look for the API: no worker can come to have one of these addresses
}

// Pool is what machines of it become.
type Pool struct {
	ControlPlane bool
	ByAddress    bool // whoever comes from the address of one of its machines that is gone takes that machine's place
}

// Verdict is one of three: Refusal says no, Wait says later, neither says yes. What it says is to be written first: the token's
// use, then the record, by [Records.Replace]. A no has a record only where it has to be remembered.
type Verdict struct {
	Refusal  *Refusal
	Wait     *wait.For
	Node     Node // the record as it has to be from now on
	UseToken bool // the token's UsedBy becomes the machine's key
}

// Refusal is a no with its reason. The text is for the audit and never for the stranger.
type Refusal struct {
	Reason Reason
	Text   string // quotes what the machine has said
}

func (r *Refusal) Error() string { return fmt.Sprintf("%s: %s", r.Reason, r.Text) }

// Reason is why a machine is not let in. The words are stable: audits and tests compare them.
type Reason string

// The reasons.
const (
	BadKey          Reason = "bad-key"          // the machine's key is malformed
	KeyUnknown      Reason = "key-unknown"      // no record has the key, and the request has no token
	KeyRemoved      Reason = "key-removed"      // the machine was removed; only a new token for this very key admits it again
	NodeRemoving    Reason = "node-removing"    // the node is being removed
	TokenUnknown    Reason = "token-unknown"    // the token never existed, or it was revoked or deleted after it had expired
	TokenWrong      Reason = "token-wrong"      // the secret does not match the token with its ID
	TokenExpired    Reason = "token-expired"    // the token has expired
	TokenClock      Reason = "token-clock"      // the token expires later than a token may: a control plane's clock is wrong
	TokenUsed       Reason = "token-used"       // another machine has used it
	TokenOtherKey   Reason = "token-other-key"  // it is bound to another machine
	PoolUnknown     Reason = "pool-unknown"     // the token's pool is not in the spec
	PoolOther       Reason = "pool-other"       // the named node is in another pool than the token's
	NameInvalid     Reason = "name-invalid"     // the name is not a valid node name
	NameOther       Reason = "name-other"       // the machine claims another name than its record has
	NameContested   Reason = "name-contested"   // a third machine already waits for the name
	NodeAlive       Reason = "node-alive"       // the machine has another key, and the node at its address is alive, or not known to be gone
	AddressInvalid  Reason = "address-invalid"  // the address is not a valid address of a machine
	AddressReserved Reason = "address-reserved" // the address is in the range of pods or Services, or clients look for the API there
	AddressTaken    Reason = "address-taken"    // another node has the address
	KeyInUse        Reason = "key-in-use"       // the machine with this key is alive at another address, or not known to be gone: one of the two is a copy of the disk
	AddressMoved    Reason = "address-moved"    // a control plane's address must not change: etcd's members know it by that address
	VersionBad      Reason = "version-bad"      // the version cannot be parsed
	VersionNewer    Reason = "version-newer"    // the machine's Kubernetes is newer than the API server
	VersionOlder    Reason = "version-older"    // it is more than three minor versions older
	SharesExhausted Reason = "shares-exhausted" // podCIDR has no free pod CIDR left
)
