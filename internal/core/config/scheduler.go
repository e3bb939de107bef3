// SPDX-License-Identifier: Apache-2.0

package config

// scheduler: flags for how it serves, a file for how it schedules.
func scheduler(c Cluster) defaults {
	elect := leaderElect(c)
	return defaults{
		env: smallHeap(),
		flags: withGates(c, append(delegation(SchedulerConf, SchedulerServing), []setting{
			{"config", SchedulerFile, std("")},
			{"bind-address", "127.0.0.1", std("")},
			{"secure-port", "10259", std("")},
			{"v", "0", std("")},
		}...)),
		config: []field{
			{"apiVersion", "kubescheduler.config.k8s.io/v1", std("")},
			{"kind", "KubeSchedulerConfiguration", std("")},
			{"clientConnection.kubeconfig", SchedulerConf, std("")},
			{"clientConnection.qps", 100, std("")},
			{"clientConnection.burst", 200, std("")},
			{"leaderElection.leaderElect", elect.value == "true", elect.origin},
			{"enableProfiling", false, std("")},
			{"enableContentionProfiling", false, std("")},
		},
	}
}
