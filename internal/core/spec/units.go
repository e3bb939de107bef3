// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"
	"time"

	"github.com/slipway-project/slipway/internal/core/placement"
)

// Unit is a process of the user's own. Its rules and options have no specifiers any more.
type Unit struct {
	placement.Unit
	Exec        []string
	Env         map[string]string
	Dir         string
	Ready       UnitReady
	Facts       []string
	StopTimeout time.Duration
	Placed      []string

	Path string // of the element that it comes from: "spec.units[0]"
}

// UnitReady is one question or none.
type UnitReady struct {
	HTTP, TCP, File string
	Notify          bool
}

// The words by which units speak of the components.
const (
	ComponentEtcd              = "etcd"
	ComponentAPIServer         = "kube-apiserver"
	ComponentControllerManager = "kube-controller-manager"
	ComponentScheduler         = "kube-scheduler"
	ComponentKubelet           = "kubelet"
	ComponentKubeProxy         = "kube-proxy"
	ComponentContainerd        = "containerd"
	ComponentBalancer          = "api-balancer"
)

// ComponentNames are all of them. The balancer is on machines without an API server.
func ComponentNames() []string {
	return []string{
		ComponentEtcd, ComponentAPIServer, ComponentControllerManager, ComponentScheduler, ComponentKubelet, ComponentKubeProxy, ComponentContainerd,
		ComponentBalancer,
	}
}

// MachineNames are the machines of the pools, as they are called in the cluster of this name.
func (c Cluster) MachineNames() []string {
	pools := c.Pools
	if len(pools) == 0 {
		pools = []Pool{{Name: DefaultPool}}
	}
	var out []string
	for _, p := range pools {
		for n := range p.Nodes() {
			out = append(out, p.MachineName(c.Name, n))
		}
	}
	return out
}

// MachineName is the name of the pool's n-th machine.
func (p Pool) MachineName(cluster string, n int) string {
	if n < len(p.Machines) {
		return p.Machines[n].Name
	}
	return fmt.Sprintf("%s-%s-%d", cluster, p.Name, n)
}

// LabelsOf are the labels that a machine has beside its pool's.
func (p Pool) LabelsOf(machine string) map[string]string {
	if i := slices.IndexFunc(p.Machines, func(m Machine) bool { return m.Name == machine }); i >= 0 {
		return p.Machines[i].Labels
	}
	return p.MachineLabels[machine]
}
