// SPDX-License-Identifier: Apache-2.0

// Package staticpods_test tests what differs when the kubelet runs the control plane as static pods. Other suites run with this form, too:
// SLIPWAY_E2E_FORM=StaticPods go test ./test/e2e/cluster ./test/e2e/kill ./test/e2e/ha.
package staticpods_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// restartLimit allows for the kubelet's back-off, which grows with each restart of a container.
const restartLimit = 4 * time.Minute

// components lists the static pods. Each depends on the ones before it.
func components() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"}
}

func TestStaticPods(t *testing.T) {
	c := kit.New(t, "staticpods")
	c.Form = "StaticPods"
	c.MustUp()
	for _, part := range []struct {
		name string
		test func(c *kit.Cluster)
	}{
		{"the components are pods", arePods},
		{"each comes back when it is killed", killed},
		{"an edited flag is another pod of one component, once", edited},
		{"the agent dies", agentDies},
		{"a manifest of the user stays", userManifest},
		{"etcd does not start over lost data", lostData},
		{"power cut", powerCut},
	} {
		c.Part(t, part.name, part.test)
	}
}

func arePods(c *kit.Cluster) {
	t := c.T
	c.Healthy(30 * time.Second)
	for _, name := range components() {
		mirror := "pod/" + name + "-" + c.Node
		testkit.Until(t, 2*time.Minute, "the API has "+mirror, func() error { // the kubelet creates it some time after the pod
			if r := c.TryKubectl("", "get", mirror, "--namespace", "kube-system"); r.Code != 0 {
				return fmt.Errorf("%s", r)
			}
			return nil
		})
		c.Wait(mirror, "condition=Ready", "--namespace", "kube-system")
		if out := c.Slipway("logs", name).Out; name != "etcd" && out == "" {
			t.Errorf("slipway logs %s: got no output", name)
		}
	}
	if link := strings.TrimSpace(c.Exec("readlink /etc/kubernetes/manifests/etcd.yaml")); link != "/var/lib/etcd/manifest/etcd.yaml" {
		t.Errorf("etcd's manifest: got a link to %q, want one to the volume of its data", link)
	}
	if left := strings.TrimSpace(c.Exec("ls -A /etc/kubernetes/manifests | grep ^[.] || true")); left != "" {
		t.Errorf("temporary files in the manifest directory: got %s, want none", left)
	}
}

func killed(c *kit.Cluster) {
	t := c.T
	for _, name := range components() {
		var p kit.Process
		testkit.Until(t, restartLimit, name+" is killed", func() (err error) { // it may be between two runs
			if p, err = c.TryProcess(name); err != nil {
				return err
			}
			return unix.Kill(p.PID, unix.SIGKILL)
		})
		testkit.Until(t, restartLimit, name+" runs again", func() error {
			now, err := c.TryProcess(name)
			if err == nil && now.PID == p.PID {
				err = fmt.Errorf("process %d still runs", p.PID)
			}
			return err
		})
		c.Healthy(restartLimit)
	}
	c.UpToDate()
}

func edited(c *kit.Cluster) {
	t := c.T
	before := c.MustUnits()
	c.MustUp("--file", c.Spec(fmt.Sprintf("apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec:\n"+
		"  controlPlane: {form: StaticPods}\n  components: {scheduler: {flags: {v: 1}}}\n", c.Name)))
	c.Healthy(time.Minute)
	after := c.MustUnits()
	if diff := cmp.Diff(kit.Steady(before), kit.Steady(after)); diff != "" {
		t.Errorf("processes (- before, + after):\n%s", diff)
	}
	if before["kube-scheduler"].PID == after["kube-scheduler"].PID {
		t.Error("PID of kube-scheduler: want a new one")
	}
	if n := after["kube-scheduler"].Restarts; n != 0 {
		t.Errorf("restarts of the new kube-scheduler: got %d, want 0", n)
	}
	if r := c.Up("--file", c.OtherForm()); r.Code != 3 || !strings.Contains(r.Err, "spec.controlPlane.form") {
		t.Errorf("up with another form: want exit code 3 and the field, got %s", r)
	}
}

func agentDies(c *kit.Cluster) {
	t := c.T
	before := c.MustUnits()
	agent := c.Process("slipway", "agent")
	c.Kill(agent)
	testkit.Until(t, 20*time.Second, "a new agent runs", func() error {
		if now, err := c.TryProcess("slipway", "agent"); err != nil || now.PID == agent.PID {
			return fmt.Errorf("agent %d: %w", now.PID, err)
		}
		return nil
	})
	c.Healthy(30 * time.Second)
	if diff := cmp.Diff(kit.Steady(before), kit.Steady(c.MustUnits())); diff != "" {
		t.Errorf("processes (- before, + after):\n%s", diff)
	}
}

func userManifest(c *kit.Cluster) {
	t := c.T
	c.ExecIn(strings.NewReader("apiVersion: v1\nkind: Pod\nmetadata: {name: hand}\nspec: {containers: [{name: c, image: \"slipway.dev/testpod:1\"}]}\n"),
		"cat > /etc/kubernetes/.hand && mv /etc/kubernetes/.hand /etc/kubernetes/manifests/hand.yaml")
	sum := c.Exec("sha256sum /etc/kubernetes/manifests/hand.yaml")
	c.MustUp()
	if now := c.Exec("sha256sum /etc/kubernetes/manifests/hand.yaml"); now != sum {
		t.Errorf("manifest of the user: got %s, want %s", now, sum)
	}
	c.Exec("rm /etc/kubernetes/manifests/hand.yaml")
}

// lostData moves etcd's data away and kills etcd: neither the kubelet nor the agent may start it without its data.
func lostData(c *kit.Cluster) {
	t := c.T
	c.WriteMarker()
	c.Exec("mv /var/lib/etcd/member /var/lib/etcd-aside")
	c.Kill(c.Process("etcd"))
	testkit.Until(t, restartLimit, "etcd's log shows the refusal", func() error {
		if r := c.Slipway("logs", "etcd"); !strings.Contains(r.Out, "refused to start over lost data") {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	c.Process("slipway", "agent")
	c.Exec("test ! -e /var/lib/etcd/member && mv /var/lib/etcd-aside /var/lib/etcd/member")
	c.Healthy(restartLimit)
	c.CheckMarker()
}

func powerCut(c *kit.Cluster) {
	t := c.T
	uid := c.UID()
	c.Machine("stop", c.Node)
	c.Machine("start", c.Node)
	c.Healthy(2 * time.Minute)
	s, err := c.Status()
	if err != nil {
		t.Fatal(err)
	}
	c.KillMachines()
	testkit.Until(t, 30*time.Second, "the machine is down", func() error {
		now, err := c.Status()
		if err == nil && now.Machines[0].PID == s.Machines[0].PID {
			err = errors.New("it still runs")
		}
		return err
	})
	c.MustUp()
	c.Healthy(2 * time.Minute)
	if now := c.UID(); now != uid {
		t.Errorf("UID of the cluster: got %s, want %s", now, uid)
	}
}

// TestThree grows a cluster to three control planes and kills all of them.
func TestThree(t *testing.T) {
	c := kit.New(t, "staticpods3")
	c.Form = "StaticPods"
	c.MustUp("--control-planes", "1")
	c.MustUp("--control-planes", "3")
	uid := c.UID()
	c.WriteMarker()
	names := c.Machines()
	if len(names) != 3 {
		t.Fatalf("machines: got %v, want 3", names)
	}
	c.KillMachines(names...)
	var starts sync.WaitGroup
	for _, name := range names {
		starts.Go(func() {
			if r := c.Slipway("machine", "start", name); r.Code != 0 {
				t.Error(r)
			}
		})
	}
	starts.Wait()
	for _, name := range names {
		c.On(name).Healthy(3 * time.Minute)
	}
	if now := c.UID(); now != uid {
		t.Errorf("UID of the cluster: got %s, want %s", now, uid)
	}
	c.CheckMarker()
}
