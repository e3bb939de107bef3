// SPDX-License-Identifier: Apache-2.0

//go:build !race

package hosttest

// slack widens time limits. Other tests run beside this one on few cores.
const slack = 2
