// SPDX-License-Identifier: Apache-2.0

// Command kube is kube-apiserver, kube-controller-manager, kube-scheduler,
// kubelet and kube-proxy in one file, so that they share pages in memory and
// are linked once.
//
// The component is chosen by the name the program was started with (a symlink
// called kubelet, say), or else by the first argument:
//
//	kubelet --config=…
//	kube kubelet --config=…
//
// Only the chosen component's command is built: two of them in one process
// would register the same flags twice.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // for time zones of CronJobs

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // version metric
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var names = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"}

func main() {
	command := commandFor(filepath.Base(os.Args[0]))
	if command == nil && len(os.Args) > 1 {
		if command = commandFor(os.Args[1]); command != nil {
			os.Args = os.Args[1:]
		}
	}
	if command == nil {
		fmt.Fprintf(os.Stderr, "usage: kube COMPONENT [flags], or a link to kube named as a component\ncomponents: %s\n",
			strings.Join(names, ", "))
		os.Exit(2)
	}
	trimAfterStart()
	os.Exit(cli.Run(command))
}

// trimAfterStart sets GOGC to the value of SLIPWAY_IDLE_GOGC and returns free memory to the kernel half a minute
// after the start. Until then Go's default applies: a larger heap makes a component start sooner, and most of that
// heap is garbage afterwards. It does nothing without that environment variable or with a GOGC.
func trimAfterStart() {
	percent, err := strconv.Atoi(os.Getenv("SLIPWAY_IDLE_GOGC"))
	if err != nil || os.Getenv("GOGC") != "" {
		return
	}
	time.AfterFunc(30*time.Second, func() {
		debug.SetGCPercent(percent)
		debug.FreeOSMemory()
	})
}

// commandFor returns nil for a name that is no component.
func commandFor(name string) *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background())
	case "kube-proxy":
		return proxy.NewProxyCommand()
	}
	return nil
}
