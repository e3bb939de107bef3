// SPDX-License-Identifier: Apache-2.0

//go:build !race

package hosttest

// slack extends time limits, because other tests run at the same time on few cores.
const slack = 2
