// SPDX-License-Identifier: Apache-2.0

package enrol

import (
	"context"
	"crypto/ecdsa"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/node"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/node/routes"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Config is what main gives an enrolment.
type Config struct {
	Lock    *lock.Lock
	Agent   *node.Agent
	Board   *reconcile.Board
	Facts   machine.Facts
	Key     *ecdsa.PrivateKey // the machine's
	Custody Custody
	Paths   Paths
	// Prover returns how the machine proves its right to join the target.
	Prover  func(node.JoinTarget) attest.Prover
	Slipway string                                          // version
	Listen  func(ctx context.Context) (net.Listener, error) // for the init service
	Log     *slog.Logger

	Now    func() time.Time                                 // optional: the machine's clock, for certificates; time.Now when nil
	Clock  func(ca pin.Pin) joinclient.Clock                // optional: TLS from the machine's address when nil
	Dial   func(ca pin.Pin) joinclient.Dialer               // optional: TLS from the machine's address when nil
	Random func(n int) int                                  // optional: a number in [0, n); math/rand/v2 when nil
	Routes func(ctx context.Context, c routes.Config) error // optional: routes.Keep when nil
	Has    func(a netip.Addr) bool                          // optional: whether the machine has this address; its interfaces say when nil
	Pass   func(step string)                                // optional: tests: between any two things that a crash may divide
}

func (c Config) filled() Config {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Clock == nil {
		c.Clock = func(pin.Pin) joinclient.Clock { return nil }
	}
	if c.Dial == nil {
		c.Dial = func(pin.Pin) joinclient.Dialer { return nil }
	}
	if c.Routes == nil {
		c.Routes = routes.Keep
	}
	if c.Has == nil {
		c.Has = hasAddress
	}
	if c.Pass == nil {
		c.Pass = func(string) {}
	}
	return c
}

// Custody makes keys on this machine, for certificates that are signed elsewhere.
type Custody interface {
	Request(w pki.Want) (request []byte, finish func(certificate []byte) error, err error)
}

// Paths are files on the machine.
type Paths struct {
	Key     string // the machine's; Config.Key was read from it
	Secret  string // by which the machine recognises its initialiser
	Request string // of the initialiser
	Target  string // which cluster to join
	JoinCA  string // certificate
	Roster  string
	Admin   string // the administrator's kubeconfig
	Create  string // permit to make a cluster
	Permit  string // etcd's first start
	Voter   string // etcd counts
	Root    string // optional: what stands in front of all these, which the plan does not know: the simulation's machines
}
