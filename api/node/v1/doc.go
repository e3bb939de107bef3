// SPDX-License-Identifier: Apache-2.0

// Package nodev1 is what operator and agent say to each other over the agent's unix socket: generated from node.proto, which
// is the file to read. It holds no logic, and its types never leave node, launch and cli.
package nodev1
