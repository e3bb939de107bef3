// SPDX-License-Identifier: Apache-2.0

// Package systemd_test boots machines whose first process is systemd, as on most hosts, and tells the stories of one machine and of
// several: what is there after the boot, without anybody's help, and what dies without harm.
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

const soon = time.Minute // far more than anything here takes

func newCluster(t *testing.T, story string) *kit.Cluster {
	t.Helper()
	c := kit.New(t, story)
	c.Init = machine.Systemd
	return c
}

// TestOneMachine boots once; the parts build on each other in this order.
func TestOneMachine(t *testing.T) {
	c := newCluster(t, "systemd")
	if _, err := os.Lstat(c.Data("etc-kubernetes")); !os.IsNotExist(err) {
		t.Fatalf("there are secrets before the first boot: %v", err)
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
			t.Fatal("without pods there is nothing to tell")
		}
	}
}

// nodeIsReady asks once for the node, without waiting: up's end is the one handle that one waits for. A deployment is counted later.
func nodeIsReady(c *kit.Cluster) {
	const isReady = `jsonpath={.status.conditions[?(@.type=="Ready")].status}`
	if got := c.Kubectl("get", "node", c.Node, "--output", isReady); got != "True" {
		c.T.Errorf("the node is ready: %q", got)
	}
	testkit.Until(c.T, soon, "CoreDNS is ready", func() error {
		r := c.TryKubectl("", "get", "deployment", "coredns", "--namespace", "kube-system", "--output", "jsonpath={.status.readyReplicas}")
		if r.Code != 0 || r.Out != "1" {
			return errors.New(r.String())
		}
		return nil
	})
}

// cleanBoot asks systemd what it thinks of its machine.
func cleanBoot(c *kit.Cluster) {
	testkit.Until(c.T, soon, "the handles are reached", func() error {
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
		c.T.Errorf("slipway.target:\n%s", diff)
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
			c.T.Errorf("%s:\n%s", command, diff)
		}
	}
}

func upAgain(c *kit.Cluster) {
	before := pids(c)
	if r := c.MustUp(); !strings.Contains(r.Out, "nothing to do") {
		c.T.Errorf("second up: %s", r)
	}
	c.Init = "" // what the machine has
	if r := c.MustUp(); !strings.Contains(r.Out, "nothing to do") {
		c.T.Errorf("up without --init: %s", r)
	}
	if diff := cmp.Diff(before, pids(c)); diff != "" {
		c.T.Errorf("processes (- before, + after):\n%s", diff)
	}
}

func otherInit(c *kit.Cluster) {
	c.Init = machine.OwnInit
	if r := c.Up(); r.Code == 0 || !strings.Contains(r.Err, "keeps the init") || !strings.Contains(r.Err, "slipway down") {
		c.T.Errorf("up --init slipway: %s", r)
	}
	if r := c.Must("machine", "list", "--output", "json"); !strings.Contains(r.Out, `"init": "systemd"`) {
		c.T.Error(r)
	}
}

// agentDies kills the agent, and has systemd restart it: the components do not notice.
func agentDies(c *kit.Cluster) {
	before := pids(c)
	agent := c.Process("slipway", "agent")
	c.Kill(agent)
	again(c, agent)
	agent = c.Process("slipway", "agent")
	c.Exec("systemctl restart slipway-agent.service")
	again(c, agent)
	c.Healthy(soon)
	if diff := cmp.Diff(before, pids(c)); diff != "" {
		c.T.Errorf("processes (- before, + after):\n%s", diff)
	}
	if got := c.Exec("systemctl is-system-running --wait"); got != "running\n" {
		c.T.Errorf("the system is %s", got)
	}
}

// again waits for another agent, and until it has looked at everything.
func again(c *kit.Cluster, before kit.Process) {
	c.T.Helper()
	testkit.Until(c.T, soon, "another agent runs, and has nothing to do", func() error {
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

// pids are the components' processes, but for those that may end by themselves.
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

// podsAndNames: an image that is on the disk, a pod made right after the boot, and the Service's name from the machine and from
// within the pod.
func podsAndNames(c *kit.Cluster) {
	c.ImportTestImage()
	c.Apply(workload)
	c.Wait("pod/server", "condition=Ready")
	address := c.Kubectl("get", "service", "web", "--output", "jsonpath={.spec.clusterIP}")
	testkit.Until(c.T, soon, "in a pod the name web is "+address, func() error { // CoreDNS and kube-proxy hear of it in their own time
		if r := c.TryKubectl("", "exec", "server", "--", "/testpod", "lookup", "web"); r.Code != 0 || !strings.HasPrefix(r.Out, address+" ") {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	dns := c.Kubectl("get", "service", "kube-dns", "--namespace", "kube-system", "--output", "jsonpath={.spec.clusterIP}")
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return c.Dial(ctx, network, net.JoinHostPort(dns, "53"))
	}}
	testkit.Until(c.T, soon, "on the machine the Service's name is "+address, func() error {
		got, err := resolver.LookupHost(c.T.Context(), "web.default.svc.cluster.local.")
		if err == nil && !slices.Equal(got, []string{address}) {
			err = fmt.Errorf("it is %v", got)
		}
		return err
	})
	testkit.Until(c.T, soon, "the Service answers", func() error {
		said, err := get(c, "http://"+address)
		if err == nil && strings.TrimSpace(said) != "server" {
			err = fmt.Errorf("it says %q", said)
		}
		return err
	})
}

// get asks from within the machine's network.
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
	said, err := io.ReadAll(reply.Body)
	return string(said), err
}

// rights: the reader's token lists pods, and neither makes nor deletes any.
func rights(c *kit.Cluster) {
	token := strings.TrimSpace(c.Kubectl("create", "token", "reader"))
	const pods = kit.API + "/api/v1/namespaces/default/pods"
	for request, want := range map[string]int{"GET " + pods: 200, "POST " + pods: 403, "DELETE " + pods + "/server": 403} {
		method, url, _ := strings.Cut(request, " ")
		if code, body := c.HTTPS(method, url, kit.BearerToken(token)); code != want {
			c.T.Errorf("%s as reader: %d, want %d: %s", request, code, want, body)
		}
	}
}

// poweredOff shuts the machine down from within: what others need ends after them. Then somebody presses the button.
func poweredOff(c *kit.Cluster) {
	c.Kubectl("create", "configmap", "written-before", "--from-literal=value=kept")
	late := outliving(c, "etcd", "kubelet", "kube-apiserver")
	c.Exec("systemctl start --no-block halt.target")
	select {
	case programs := <-late:
		if len(programs) > 0 {
			c.T.Errorf("etcd has ended before %v", programs)
		}
	case <-time.After(2 * soon):
		c.T.Fatal("etcd does not end")
	}
	down(c)
	c.Machine("start", c.Node)
	backAgain(c)
}

func down(c *kit.Cluster) {
	c.T.Helper()
	testkit.Until(c.T, soon, "the machine is down", func() error {
		s, err := c.Status()
		for _, m := range s.Machines {
			if m.Name == c.Node && m.Running {
				return fmt.Errorf("process %d runs", m.PID)
			}
		}
		return err
	})
}

// backAgain: the same cluster with what was written, by itself.
func backAgain(c *kit.Cluster) {
	c.T.Helper()
	testkit.Until(c.T, 2*soon, "the cluster is ready again", func() error { return converged(c) })
	c.Healthy(soon)
	if v := c.Kubectl("get", "configmap", "written-before", "--output", "jsonpath={.data.value}"); v != "kept" {
		c.T.Errorf("the ConfigMap of before holds %q", v)
	}
	c.Wait("pod/server", "condition=Ready")
	if got := c.Exec("systemctl is-system-running --wait"); got != "running\n" {
		c.T.Errorf("the system is %s", got)
	}
}

// cutAtBoot pulls the plug and the cable, and powers the machine on without its network.
func cutAtBoot(c *kit.Cluster) {
	c.Machine("stop", c.Node)
	c.Machine("cut", c.Node)
	c.Machine("start", c.Node)
	backAgain(c)
	c.Machine("heal", c.Node)
	testkit.Until(c.T, soon, "with its network back it is ready", func() error { return converged(c) })
}

// outliving sends, as soon as a program of the machine has ended, which of the others still run: those have for certain not ended
// before it, however late this process is to look.
func outliving(c *kit.Cluster, program string, others ...string) <-chan []string {
	c.T.Helper()
	last := watched(c, program)
	fds := map[string]int{}
	for _, other := range others {
		fds[other] = watched(c, other)
	}
	late := make(chan []string, 1)
	go func() {
		if is, err := ended(last, 3*soon); !is || err != nil {
			return // nothing comes, and the test says so
		}
		var running []string
		for other, fd := range fds {
			if is, err := ended(fd, 0); !is || err != nil {
				running = append(running, other)
			}
		}
		late <- running
	}()
	return late
}

// watched is a descriptor of the one process of a program.
func watched(c *kit.Cluster, program string) int {
	c.T.Helper()
	fd, err := unix.PidfdOpen(c.Process(program).PID, 0)
	if err != nil {
		c.T.Fatalf("watch %s: %v", program, err)
	}
	c.T.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func ended(fd int, limit time.Duration) (bool, error) {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(limit.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n > 0, err
		}
	}
}
