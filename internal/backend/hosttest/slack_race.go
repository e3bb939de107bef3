// SPDX-License-Identifier: Apache-2.0

//go:build race

package hosttest

// slack extends time limits: the race detector slows everything down several times.
const slack = 8
