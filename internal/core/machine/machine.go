// SPDX-License-Identifier: Apache-2.0

// Package machine holds the vocabulary for machines that several packages share: labels and taints.
//
// Read [NodeLabels] and [Taint] first.
package machine
