// SPDX-License-Identifier: Apache-2.0

// Package staticpods_test tells what is different when the kubelet runs the control plane. The stories of the other form run in this
// one, too: SLIPWAY_E2E_FORM=StaticPods go test ./test/e2e/cluster ./test/e2e/kill ./test/e2e/ha.
package staticpods_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

const form = "StaticPods"

// patience is for the kubelet, which waits longer and longer before it starts again what has ended.
const patience = 4 * time.Minute

// component names what runs as a pod, in the order in which each depends on the one before.
func component() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"}
}

func TestStaticPods(t *testing.T) {
	c := kit.New(t, "staticpods")
	c.Form = form
	c.MustUp()
	for _, part := range []struct {
		name string
		test func(t *testing.T, c *kit.Cluster)
	}{
		{"the components are pods", arePods},
		{"each comes back when it is killed", killed},
		{"an edited flag is another pod of one component, once", edited},
		{"the agent dies", agentDies},
		{"a manifest of the user's stays", foreign},
		{"etcd does not start over lost data", lostData},
		{"power cut", powerCut},
	} {
		t.Run(part.name, func(t *testing.T) {
			mine := *c
			mine.T = t
			part.test(t, &mine)
		})
	}
}

func arePods(t *testing.T, c *kit.Cluster) {
	c.Healthy(30 * time.Second)
	for _, name := range component() {
		mirror := "pod/" + name + "-" + c.Node
		testkit.Until(t, 2*time.Minute, "the API shows "+mirror, func() error { // which the kubelet makes in its own time
			if r := c.TryKubectl("", "get", mirror, "--namespace", "kube-system"); r.Code != 0 {
				return fmt.Errorf("%s", r)
			}
			return nil
		})
		c.Wait(mirror, "condition=Ready", "--namespace", "kube-system")
		if said := c.Slipway("logs", name).Out; name != "etcd" && said == "" {
			t.Errorf("slipway logs %s says nothing", name)
		}
	}
	if link := strings.TrimSpace(c.Exec("readlink /etc/kubernetes/manifests/etcd.yaml")); link != "/var/lib/etcd/manifest/etcd.yaml" {
		t.Errorf("etcd's manifest is at %q, not on the volume of its data", link)
	}
	if left := strings.TrimSpace(c.Exec("ls -A /etc/kubernetes/manifests | grep ^[.] || true")); left != "" {
		t.Errorf("half-written manifests: %s", left)
	}
}

func killed(t *testing.T, c *kit.Cluster) {
	for _, name := range component() {
		var p kit.Process
		testkit.Until(t, patience, name+" is killed", func() (err error) { // it may just have ended by itself
			if p, err = c.TryProcess(name); err != nil {
				return err
			}
			return unix.Kill(p.PID, unix.SIGKILL)
		})
		testkit.Until(t, patience, name+" runs again", func() error {
			now, err := c.TryProcess(name)
			if err == nil && now.PID == p.PID {
				err = fmt.Errorf("it has not ended")
			}
			return err
		})
		c.Healthy(patience)
	}
	if r := c.MustUp(); !strings.Contains(r.Out, "nothing to do") {
		t.Errorf("up after it: %s", r)
	}
}

func units(c *kit.Cluster) map[string]kit.Unit {
	c.T.Helper()
	all, err := c.Units()
	if err != nil {
		c.T.Fatal(err)
	}
	return all
}

func edited(t *testing.T, c *kit.Cluster) {
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	text := fmt.Sprintf("apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec:\n"+
		"  controlPlane: {form: StaticPods}\n  components: {scheduler: {flags: {v: 1}}}\n", c.Name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	before := units(c)
	c.MustUp("--file", file)
	c.Healthy(time.Minute)
	after := units(c)
	if diff := cmp.Diff(kit.Steady(before), kit.Steady(after)); diff != "" {
		t.Errorf("processes (- before, + after):\n%s", diff)
	}
	if before["kube-scheduler"].PID == after["kube-scheduler"].PID {
		t.Error("kube-scheduler is the one of before")
	}
	if n := after["kube-scheduler"].Restarts; n != 0 {
		t.Errorf("kube-scheduler was restarted %d times beyond the one", n)
	}
	if r := c.Up("--file", c.OtherForm()); r.Code != 3 || !strings.Contains(r.Err, "spec.controlPlane.form") {
		t.Errorf("another form was not refused: %s", r)
	}
}

func agentDies(t *testing.T, c *kit.Cluster) {
	before := units(c)
	agent := c.Process("slipway", "agent")
	c.Kill(agent)
	testkit.Until(t, 20*time.Second, "another agent answers", func() error {
		if now, err := c.TryProcess("slipway", "agent"); err != nil || now.PID == agent.PID {
			return fmt.Errorf("%d, %w", now.PID, err)
		}
		return nil
	})
	c.Healthy(30 * time.Second)
	if diff := cmp.Diff(kit.Steady(before), kit.Steady(units(c))); diff != "" {
		t.Errorf("processes (- before, + after):\n%s", diff)
	}
}

func foreign(t *testing.T, c *kit.Cluster) {
	c.ExecIn(strings.NewReader("apiVersion: v1\nkind: Pod\nmetadata: {name: hand}\nspec: {containers: [{name: c, image: \"slipway.dev/testpod:1\"}]}\n"),
		"cat > /etc/kubernetes/.hand && mv /etc/kubernetes/.hand /etc/kubernetes/manifests/hand.yaml")
	sum := c.Exec("sha256sum /etc/kubernetes/manifests/hand.yaml")
	c.MustUp()
	if now := c.Exec("sha256sum /etc/kubernetes/manifests/hand.yaml"); now != sum {
		t.Errorf("the user's manifest: %s, then %s", sum, now)
	}
	c.Exec("rm /etc/kubernetes/manifests/hand.yaml")
}

// lostData takes etcd's data away and has its process start again: neither the kubelet nor the agent may make a new cluster.
func lostData(t *testing.T, c *kit.Cluster) {
	c.Kubectl("create", "configmap", "memory", "--from-literal=it=is-there")
	c.Exec("mv /var/lib/etcd/member /var/lib/etcd-aside")
	c.Kill(c.Process("etcd"))
	testkit.Until(t, 4*time.Minute, "etcd says what it misses", func() error { // the kubelet is as slow as below before it tries
		if r := c.Slipway("logs", "etcd"); !strings.Contains(r.Out, "refused to start over lost data") {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	c.Process("slipway", "agent")
	c.Exec("test ! -e /var/lib/etcd/member && mv /var/lib/etcd-aside /var/lib/etcd/member")
	c.Healthy(patience) // the kubelet asks the API meanwhile, which answers late without etcd
	if got := answer(c, "configmap/memory", "{.data.it}"); got != "is-there" {
		t.Errorf("the cluster remembers %q", got)
	}
}

// answer is a field of an object of the API, which may have been without etcd until now.
func answer(c *kit.Cluster, object, field string) (value string) {
	c.T.Helper()
	testkit.Until(c.T, 2*time.Minute, "the API tells "+field+" of "+object, func() error {
		r := c.TryKubectl("", "get", object, "--output", "jsonpath="+field, "--request-timeout=5s")
		if value = r.Out; r.Code != 0 || value == "" {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	return value
}

func powerCut(t *testing.T, c *kit.Cluster) {
	uid := answer(c, "namespace/kube-system", "{.metadata.uid}")
	c.Machine("stop", c.Node)
	c.Machine("start", c.Node)
	c.Healthy(2 * time.Minute)
	s, err := c.Status()
	if err != nil {
		t.Fatal(err)
	}
	c.Kill(kit.Process{PID: s.Machines[0].PID, Args: []string{"PID 1 of " + c.Node}})
	testkit.Until(t, 30*time.Second, "all of the machine has ended", func() error {
		now, err := c.Status()
		if err == nil && now.Machines[0].PID == s.Machines[0].PID {
			err = errors.New("it runs")
		}
		return err
	})
	c.MustUp()
	c.Healthy(2 * time.Minute)
	if now := answer(c, "namespace/kube-system", "{.metadata.uid}"); now != uid {
		t.Errorf("another cluster: %s, then %s", uid, now)
	}
}

// TestThree grows to three control planes and cuts the power of all.
func TestThree(t *testing.T) {
	c := kit.New(t, "staticpods3")
	c.Form = form
	c.MustUp("--control-planes", "1")
	c.MustUp("--control-planes", "3")
	uid := c.Kubectl("get", "namespace", "kube-system", "--output", "jsonpath={.metadata.uid}")
	c.Kubectl("create", "configmap", "memory", "--from-literal=it=is-there")
	s, err := c.Status()
	if err != nil || len(s.Machines) != 3 {
		t.Fatalf("%+v, %v", s, err)
	}
	for _, m := range s.Machines {
		c.Kill(kit.Process{PID: m.PID, Args: []string{"PID 1 of " + m.Name}})
	}
	var starts sync.WaitGroup
	for _, m := range s.Machines {
		starts.Go(func() {
			if r := c.Slipway("machine", "start", m.Name); r.Code != 0 {
				t.Error(r)
			}
		})
	}
	starts.Wait()
	for i := range s.Machines {
		c.On(c.Main(i)).Healthy(3 * time.Minute)
	}
	if now := answer(c, "namespace/kube-system", "{.metadata.uid}"); now != uid {
		t.Errorf("another cluster: %s, then %s", uid, now)
	}
	if got := answer(c, "configmap/memory", "{.data.it}"); got != "is-there" {
		t.Errorf("the cluster remembers %q", got)
	}
}
