// SPDX-License-Identifier: Apache-2.0

//go:build race

package hosttest

// slack widens time limits: under the race detector everything takes several times longer.
const slack = 8
