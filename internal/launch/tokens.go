// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"time"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
)

// TokenOptions say what a new token is good for.
type TokenOptions struct {
	Pool string        // of the spec
	Node string        // optional: the only name
	Key  string        // optional: pin of the only machine
	TTL  time.Duration // optional: the longest there is
}

// NewToken is a token when it is made: only then can it be seen.
type NewToken struct {
	ID        string    `json:"id"`
	Token     string    `json:"token"`
	Pool      string    `json:"pool"`
	Node      string    `json:"node,omitempty"`
	Pin       string    `json:"pin"`     // of the join CA
	Cluster   string    `json:"cluster"` // the cluster's id
	Endpoints []string  `json:"endpoints"`
	Expires   time.Time `json:"expires"`
}

// Token is one that was made.
type Token struct {
	ID      string    `json:"id"`
	Pool    string    `json:"pool"`
	Node    string    `json:"node,omitempty"`
	Expires time.Time `json:"expires"`
	UsedBy  string    `json:"usedBy,omitempty"` // pin of the machine's key
}

// CreateToken makes a token that lets one machine in.
func (l *Launcher) CreateToken(ctx context.Context, cluster string, o TokenOptions) (NewToken, error) {
	var r *controlv1.CreateTokenReply
	err := l.askControl(ctx, cluster, func(ctx context.Context, c controlv1.ControlClient) (err error) {
		r, err = c.CreateToken(ctx, &controlv1.CreateTokenRequest{Pool: o.Pool, Node: o.Node, Key: o.Key, TtlSeconds: wholeSeconds(o.TTL)})
		return err
	})
	if err != nil {
		return NewToken{}, fmt.Errorf("create token: %w", err)
	}
	return NewToken{
		ID: r.GetId(), Token: r.GetToken(), Pool: o.Pool, Node: o.Node, Pin: r.GetPin(), Cluster: r.GetCluster(), Endpoints: notNil(r.GetEndpoints()),
		Expires: time.Unix(r.GetExpiresUnix(), 0).UTC(),
	}, nil
}

// Tokens lists the tokens that the cluster remembers, used and expired ones too.
func (l *Launcher) Tokens(ctx context.Context, cluster string) ([]Token, error) {
	var r *controlv1.ListTokensReply
	err := l.askControl(ctx, cluster, func(ctx context.Context, c controlv1.ControlClient) (err error) {
		r, err = c.ListTokens(ctx, &controlv1.ListTokensRequest{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	tokens := []Token{}
	for _, t := range r.GetTokens() {
		tokens = append(tokens, Token{t.GetId(), t.GetPool(), t.GetNode(), time.Unix(t.GetExpiresUnix(), 0).UTC(), t.GetUsedBy()})
	}
	return tokens, nil
}

// RevokeToken makes a token worthless.
func (l *Launcher) RevokeToken(ctx context.Context, cluster, id string) error {
	err := l.askControl(ctx, cluster, func(ctx context.Context, c controlv1.ControlClient) error {
		_, err := c.RevokeToken(ctx, &controlv1.RevokeTokenRequest{Id: id})
		return err
	})
	if err != nil {
		return fmt.Errorf("revoke token %s: %w", id, err)
	}
	return nil
}
