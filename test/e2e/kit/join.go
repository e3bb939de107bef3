// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"encoding/json"
	"strings"
)

// Token is what slipway token create says.
type Token struct {
	ID        string   `json:"id"`
	Token     string   `json:"token"`
	Pin       string   `json:"pin"`
	Cluster   string   `json:"cluster"`
	Endpoints []string `json:"endpoints"`
}

// NewToken makes a token.
func (c *Cluster) NewToken(args ...string) Token {
	c.T.Helper()
	r := c.Must(append([]string{"token", "create", "--output", "json"}, args...)...)
	var t Token
	if err := json.Unmarshal([]byte(r.Out), &t); err != nil || t.Token == "" {
		c.T.Fatalf("%v: no token", err) // never what was said: it may be one
	}
	return t
}

// TryJoin has the machine join, as its owner does on its console: the token comes by standard input. Without one, the cluster knows
// the machine's key.
func (c *Cluster) TryJoin(t Token, args ...string) Result {
	c.T.Helper()
	line := []string{"exec", "--name", c.Name, c.Node, "--", "/opt/slipway/bin/slipway", "join", "--pin", t.Pin}
	for _, e := range t.Endpoints {
		line = append(line, "--endpoint", e)
	}
	if t.Token == "" {
		line = append(line, "--known")
	}
	return run(c.T, upLimit, strings.NewReader(t.Token), c.Bin, append(line, args...)...)
}

// Join is TryJoin that waits until the machine is in.
func (c *Cluster) Join(t Token, args ...string) {
	c.T.Helper()
	if r := c.TryJoin(t, append(args, "--wait", "--timeout", "3m")...); r.Code != 0 {
		c.T.Fatal(r)
	}
}
