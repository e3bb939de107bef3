// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/machine"
)

// extras leaves the addresses before it to the machines of specs.
const extras = 40

// Extra boots one more machine in the cluster's network that belongs to nobody, as somebody else than slipway up would, and returns
// when its agent answers. Files go to /var/lib/slipway before its first boot.
func (c *Cluster) Extra(i int, files map[string][]byte) *Cluster {
	c.T.Helper()
	m := c.Boot(i, files)
	Until(c.T, 30*time.Second, "the agent of "+m.Node+" answers", func() error {
		if r := m.TryExec(nil, "/opt/slipway/bin/slipway identity"); r.Code != 0 {
			return errors.New(r.Err)
		}
		return nil
	})
	return m
}

// Boot is Extra for a machine whose agent may fall before it answers.
func (c *Cluster) Boot(i int, files map[string][]byte) *Cluster {
	c.T.Helper()
	local, err := machine.New(machine.Config{Root: Root, Runc: Component(c.T, "runc"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.T.Fatal(err)
	}
	name := fmt.Sprintf("%s-extra-%d", c.Name, i)
	if _, err := local.Ensure(c.T.Context(), machine.Spec{Cluster: c.Name, Name: name, Index: extras + i, Binary: c.Bin, Init: c.Init, Files: files}); err != nil {
		c.T.Fatal(err)
	}
	return c.On(name)
}

// Pin is that of the machine's key, as its console shows it.
func (c *Cluster) Pin() string {
	c.T.Helper()
	pin, err := c.TryPin()
	if err != nil {
		c.T.Fatal(err)
	}
	return pin
}

// TryPin is Pin of a machine that may just be starting.
func (c *Cluster) TryPin() (string, error) {
	text, err := os.ReadFile(c.Data("slipway", "state", "machine.key"))
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return "", fmt.Errorf("key of machine %s: no PEM", c.Node)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("key of machine %s: %w", c.Node, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return "", fmt.Errorf("key of machine %s: %T", c.Node, key)
	}
	return roster.PinOf(signer.Public())
}
