// SPDX-License-Identifier: Apache-2.0

//go:build !failpoints

package main

import (
	"time"

	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/etcd"
)

// failpoints: released programs have none.
type failpoints struct{}

func newFailpoints() failpoints { return failpoints{} }

func (failpoints) Now() time.Time { return time.Now() }

func (failpoints) pass() func(phase string) { return nil }

func (failpoints) afterStep() func(n int, s plan.Step) { return nil }

func (failpoints) Audit(to func(joinserver.Entry)) func(joinserver.Entry) { return to }

func (failpoints) Etcd(c *etcd.Client) members.Etcd { return c }
