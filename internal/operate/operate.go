// SPDX-License-Identifier: Apache-2.0

// Package operate is what an operator does with a running cluster: status, waiting, nodes, tokens, certificates, logs, commands
// in machines, power and network of local machines, and access to the API; and, on a machine itself, its identity, its init
// secret and its request to join. It never creates a cluster or changes its spec; package bootstrap does.
//
// Every function is one command. Most take an inventory, which finds the cluster's machines. Read [Status], [Nodes] and
// [Access] first; [ClusterStatus] and [Node] are the main results.
package operate
