// SPDX-License-Identifier: Apache-2.0

// Package systemd_test boots machines with systemd as the first process: one machine, and several in any order.
package systemd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

const soon = time.Minute // far longer than any step takes

func newCluster(t *testing.T, story string) *kit.Cluster {
	t.Helper()
	c := kit.New(t, story)
	c.Init = machine.Systemd
	return c
}

// TestOneMachine boots one machine. Its parts depend on each other in this order.
func TestOneMachine(t *testing.T) {
	c := newCluster(t, "systemd")
	if _, err := os.Lstat(c.Data("etc-kubernetes")); !os.IsNotExist(err) {
		t.Fatalf("etc-kubernetes before the first boot: got %v, want no such directory", err)
	}
	c.MustUp()
	for i, part := range []struct {
		name string
		test func(c *kit.Cluster)
	}{
		{"the node is ready when up says so", nodeIsReady},
		{"a pod runs and names resolve", podsAndNames},
		{"rights are asked for", rights},
		{"nothing has failed, and nothing of the host's runs", cleanBoot},
		{"another up changes nothing", upAgain},
		{"another init is refused", otherInit},
		{"the agent dies", agentDies},
		{"the machine goes down in order", poweredOff},
		{"the network is cut at boot", cutAtBoot},
	} {
		if !c.Part(t, part.name, part.test) && i < 2 {
			t.Fatal("the other parts need pods")
		}
	}
}

// nodeIsReady does not wait for the node: it must be ready when up returns.
func nodeIsReady(c *kit.Cluster) {
	const isReady = `jsonpath={.status.conditions[?(@.type=="Ready")].status}`
	if got := c.Kubectl("get", "node", c.Node, "--output", isReady); got != "True" {
		c.T.Errorf("Ready condition of the node: got %q, want True", got)
	}
	testkit.Until(c.T, soon, "CoreDNS is ready", func() error {
		r := c.TryKubectl("", "get", "deployment", "coredns", "--namespace", "kube-system", "--output", "jsonpath={.status.readyReplicas}")
		if r.Code != 0 || r.Out != "1" {
			return errors.New(r.String())
		}
		return nil
	})
}

// cleanBoot checks systemd's view of the machine.
func cleanBoot(c *kit.Cluster) {
	testkit.Until(c.T, soon, "the systemd targets are active", func() error {
		if r := c.TryExec(nil, "systemctl is-active slipway.target slipway-cluster.target"); r.Code != 0 {
			return errors.New(r.String())
		}
		return nil
	})
	tree := "slipway.target\n"
	for _, name := range kit.Components() {
		tree += "slipway-" + name + ".service\n"
	}
	if diff := cmp.Diff(tree, c.Exec("systemctl list-dependencies --plain slipway.target | tr -d '● '")); diff != "" {
		c.T.Errorf("units of slipway.target (-want +got):\n%s", diff)
	}
	for command, want := range map[string]string{
		"systemctl is-system-running --wait":                                                            "running\n",
		"systemctl --failed --plain --no-legend":                                                        "",
		"systemctl is-enabled slipway-agent.service":                                                    "enabled\n",
		"systemctl show --property NRestarts slipway-agent.service":                                     "NRestarts=0\n",
		"systemctl list-units --plain --no-legend --type=timer,path,automount,swap":                     "",
		"systemctl list-units --plain --no-legend --type=socket | cut -d' ' -f1":                        "dbus.socket\nsystemd-journald.socket\n",
		"systemctl list-units --plain --no-legend --type=service | grep -v '^slipway-' | cut -d' ' -f1": "systemd-journald.service\n",
	} {
		if diff := cmp.Diff(want, c.Exec(command)); diff != "" {
			c.T.Errorf("%s (-want +got):\n%s", command, diff)
		}
	}
}

func upAgain(c *kit.Cluster) {
	before := pids(c)
	c.UpToDate()
	c.Init = "" // without --init, the machine keeps its init
	c.UpToDate()
	if diff := cmp.Diff(before, pids(c)); diff != "" {
		c.T.Errorf("processes (- before, + after):\n%s", diff)
	}
}

func otherInit(c *kit.Cluster) {
	c.Init = machine.OwnInit
	if r := c.Up(); r.Code == 0 || !strings.Contains(r.Err, "keeps the init") || !strings.Contains(r.Err, "slipway down") {
		c.T.Errorf("up --init slipway: want a refusal, got %s", r)
	}
	if r := c.Must("machine", "list", "--output", "json"); !strings.Contains(r.Out, `"init": "systemd"`) {
		c.T.Error(r)
	}
}

// agentDies kills the agent, and then has systemd restart it. The components keep running.
func agentDies(c *kit.Cluster) {
	before := pids(c)
	agent := c.Process("slipway", "agent")
	c.Kill(agent)
	newAgent(c, agent)
	agent = c.Process("slipway", "agent")
	c.Exec("systemctl restart slipway-agent.service")
	newAgent(c, agent)
	c.Healthy(soon)
	if diff := cmp.Diff(before, pids(c)); diff != "" {
		c.T.Errorf("processes (- before, + after):\n%s", diff)
	}
	if got := c.Exec("systemctl is-system-running --wait"); got != "running\n" {
		c.T.Errorf("systemctl is-system-running: got %s, want running", got)
	}
}

// newAgent waits until an agent other than before has converged.
func newAgent(c *kit.Cluster, before kit.Process) {
	c.T.Helper()
	testkit.Until(c.T, soon, "a new agent has converged", func() error {
		now, err := c.TryProcess("slipway", "agent")
		if err != nil || now.PID == before.PID {
			return errors.Join(err, fmt.Errorf("agent %d", now.PID))
		}
		return converged(c)
	})
}

func converged(c *kit.Cluster) error {
	s, err := c.Status()
	if err == nil && !s.Ready {
		err = errors.New(s.Verdict)
	}
	return err
}

// pids returns the PIDs of the components that do not exit by themselves.
func pids(c *kit.Cluster) map[string]int {
	c.T.Helper()
	units, err := c.Units()
	if err != nil {
		c.T.Fatal(err)
	}
	return kit.Steady(units)
}

const workload = `
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: default, labels: {app: web}}
spec:
  containers:
  - {name: web, image: "slipway.dev/testpod:1", imagePullPolicy: Never, args: [serve], ports: [{containerPort: 8080}],
     readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}}
` + kit.WebService + kit.Reader

// podsAndNames runs a pod right after the boot from an image on the disk, and resolves the Service's name in the pod and on the machine.
func podsAndNames(c *kit.Cluster) {
	c.ImportTestImage()
	c.Apply(workload)
	c.Wait("pod/server", "condition=Ready")
	address := c.Kubectl("get", "service", "web", "--output", "jsonpath={.spec.clusterIP}")
	testkit.Until(c.T, soon, "the name web is "+address+" in a pod", func() error { // CoreDNS and kube-proxy need time to see the Service
		if r := c.TryKubectl("", "exec", "server", "--", "/testpod", "lookup", "web"); r.Code != 0 || !strings.HasPrefix(r.Out, address+" ") {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	dns := c.Kubectl("get", "service", "kube-dns", "--namespace", "kube-system", "--output", "jsonpath={.spec.clusterIP}")
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return c.Dial(ctx, network, net.JoinHostPort(dns, "53"))
	}}
	testkit.Until(c.T, soon, "the Service's name is "+address+" on the machine", func() error {
		got, err := resolver.LookupHost(c.T.Context(), "web.default.svc.cluster.local.")
		if err == nil && !slices.Equal(got, []string{address}) {
			err = fmt.Errorf("got %v", got)
		}
		return err
	})
	testkit.Until(c.T, soon, "the Service answers", func() error {
		got, err := get(c, "http://"+address)
		if err == nil && strings.TrimSpace(got) != "server" {
			err = fmt.Errorf("got %q", got)
		}
		return err
	})
}

// get requests a URL from the machine's network.
func get(c *kit.Cluster, url string) (string, error) {
	client := http.Client{Transport: &http.Transport{DialContext: c.Dial, DisableKeepAlives: true}, Timeout: 5 * time.Second}
	r, err := http.NewRequestWithContext(c.T.Context(), http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	reply, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	return string(text), err
}

// rights checks that the reader's token can list pods, but neither create nor delete them.
func rights(c *kit.Cluster) {
	token := strings.TrimSpace(c.Kubectl("create", "token", "reader"))
	const pods = kit.API + "/api/v1/namespaces/default/pods"
	for request, want := range map[string]int{"GET " + pods: 200, "POST " + pods: 403, "DELETE " + pods + "/server": 403} {
		method, url, _ := strings.Cut(request, " ")
		if code, body := c.HTTPS(method, url, kit.BearerToken(token)); code != want {
			c.T.Errorf("%s as reader: got %d, want %d: %s", request, code, want, body)
		}
	}
}

// poweredOff shuts the machine down from within: components stop before those that they need. Then the machine is powered on.
func poweredOff(c *kit.Cluster) {
	c.WriteMarker()
	late := outliving(c, "etcd", "kubelet", "kube-apiserver")
	c.Exec("systemctl start --no-block halt.target")
	select {
	case programs := <-late:
		if len(programs) > 0 {
			c.T.Errorf("etcd stopped before %v, want after them", programs)
		}
	case <-time.After(2 * soon):
		c.T.Fatalf("timed out after %s waiting until etcd stops", 2*soon)
	}
	testkit.Until(c.T, soon, "the machine is down", func() error {
		s, err := c.Status()
		for _, m := range s.Machines {
			if m.Name == c.Node && m.Running {
				return fmt.Errorf("process %d still runs", m.PID)
			}
		}
		return err
	})
	c.Machine("start", c.Node)
	recovered(c)
}

// recovered waits until the cluster is ready again, without another up, and checks its data.
func recovered(c *kit.Cluster) {
	c.T.Helper()
	testkit.Until(c.T, 2*soon, "the cluster is ready again", func() error { return converged(c) })
	c.Healthy(soon)
	c.CheckMarker()
	c.Wait("pod/server", "condition=Ready")
	if got := c.Exec("systemctl is-system-running --wait"); got != "running\n" {
		c.T.Errorf("systemctl is-system-running: got %s, want running", got)
	}
}

// cutAtBoot boots the machine without its network.
func cutAtBoot(c *kit.Cluster) {
	c.Machine("stop", c.Node)
	c.Machine("cut", c.Node)
	c.Machine("start", c.Node)
	recovered(c)
	c.Machine("heal", c.Node)
	testkit.Until(c.T, soon, "the machine is ready with its network", func() error { return converged(c) })
}

// outliving sends, when a program of the machine has exited, which of the others still run. Those certainly did not exit before it, even if
// this process is scheduled late.
func outliving(c *kit.Cluster, program string, others ...string) <-chan []string {
	c.T.Helper()
	watch := func(program string) (pidfd int) {
		fd, err := unix.PidfdOpen(c.Process(program).PID, 0)
		if err != nil {
			c.T.Fatalf("watch %s: %v", program, err)
		}
		c.T.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	last := watch(program)
	fds := map[string]int{}
	for _, other := range others {
		fds[other] = watch(other)
	}
	late := make(chan []string, 1)
	go func() {
		if is, err := exited(last, 3*soon); !is || err != nil {
			return // the test times out
		}
		var running []string
		for other, fd := range fds {
			if is, err := exited(fd, 0); !is || err != nil {
				running = append(running, other)
			}
		}
		late <- running
	}()
	return late
}

// exited reports whether a process exits within limit.
func exited(pidfd int, limit time.Duration) (bool, error) {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(limit.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n > 0, err
		}
	}
}
