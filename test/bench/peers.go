// SPDX-License-Identifier: Apache-2.0

package main

// peers are medians of others on the reference host, measured on another day with a prober like this one and all images
// imported: kubeadm 1.36.3 with containerd, kubelet and the CNI configuration in place before; the same with the
// controller-manager's known waste mended; k3s with sqlite and with etcd, k0s as a single node, all three from nothing.
type peers struct{ kubeadm, tuned, k3s, k3sEtcd, k0s string }

func (p peers) columns() []string { return []string{p.kubeadm, p.tuned, p.k3s, p.k3sEtcd, p.k0s} }

var (
	peersAPI  = peers{"4.8", "4.6", "3.4", "4.4", "3.7"}
	peersNode = peers{"4.0", "3.6", "5.7", "5.7", "12.3"}
	peersPod  = peers{"13.2", "8.2", "11.2", "11.1", "14.1"}
	peersDNS  = peers{"16.7", "11.4", "12.8", "13.0", "45.5"}
	peersCPU  = peers{"9.3", "8.0", "5.2", "8", "10.2"}
	peersPSS  = peers{"797", "", "563", "575", "894"}
	peersIdle = peers{"5.2", "", "1.8", "", "3.6"}

	// A worker's join; with kubeadm containerd runs already.
	peersWorker = peers{"1.0", "", "3.0", "", "0.9"}
)
