// SPDX-License-Identifier: Apache-2.0

package ha_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// cutMain cuts off the control plane whose etcd leads, which is the worst one: the others go on, and what it says afterwards is
// never a success.
func cutMain(c *kit.Cluster) {
	victim := c.Leader()
	writer := c.On(c.Worker(0)).WriteAPI("cut-main")
	defer writer.Stop()
	writes(c, writer, 20)
	alone := c.On(victim).APIClient(true, 2*time.Second)
	if err := kit.WriteConfigMap(c.T.Context(), alone, "cut-main-before"); err != nil {
		c.T.Fatalf("write through the API server of %s itself: %v", victim, err)
	}
	writer.Reset()
	c.Machine("cut", victim)
	kit.Until(c.T, soon, "the others have another leader and go on", func() error {
		if _, answers, err := writer.Gap(); answers < 100 {
			return fmt.Errorf("%d writes: %w", answers, err)
		}
		return nil
	})
	gap, answers, err := writer.Gap()
	c.T.Logf("%s, which led, was cut off: longest gap between acknowledged writes %.2f s, %d since (last error: %v)", victim, gap.Seconds(), answers, err)
	if gap > leaderLoss {
		c.T.Errorf("no acknowledged write for %s, want at most %s: %v", gap, leaderLoss, err)
	}
	for i := range 3 {
		if err := kit.WriteConfigMap(c.T.Context(), alone, fmt.Sprintf("cut-main-alone-%d", i)); err == nil {
			c.T.Errorf("write %d through the API server of %s, which is cut off, was acknowledged", i, victim)
		}
		if err := read(c.T.Context(), alone, "cut-main-before"); err == nil {
			c.T.Errorf("read %d through the API server of %s, which is cut off, was answered: nobody knows whether that is still so", i, victim)
		}
	}
	c.Machine("heal", victim)
	begun := time.Now()
	c.AllReady(soon, mains, workers)
	c.T.Logf("%s is back %.1f s after it was healed", victim, time.Since(begun).Seconds())
	writer.Stop()
	writer.AllThere(c)
	healthyMembers(c)
	kit.Until(c.T, soon, "what was written meanwhile is read through "+victim, func() error {
		return read(c.T.Context(), alone, writer.Acked()[len(writer.Acked())-1])
	})
}

// read asks for one object, which an API server answers from a majority of etcd only.
func read(ctx context.Context, client *http.Client, name string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, kit.API+"/api/v1/namespaces/default/configmaps/"+name, nil)
	if err != nil {
		return err
	}
	reply, err := client.Do(r)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return errors.New(reply.Status)
	}
	return nil
}

// partition is how long a worker is cut off: longer than the cluster takes to notice.
func partition() time.Duration {
	if os.Getenv("SLIPWAY_E2E_LONG") != "" {
		return 10 * time.Minute
	}
	return 90 * time.Second
}

// cutWorker: its pods keep serving, and it comes back without hands.
func cutWorker(c *kit.Cluster) {
	victim := c.Worker(1)
	pods, address := containers(c, victim), podAddress(c, victim)
	inside := c.On(victim).Poll("http://" + net.JoinHostPort(address, "8081"))
	defer inside.Stop()
	inside.Reset()
	begun := time.Now()
	c.Machine("cut", victim)
	c.Wait("node/"+victim, "condition=Ready=Unknown")
	c.T.Logf("the cluster has noticed after %.0f s", time.Since(begun).Seconds())
	kit.Until(c.T, partition()+soon, "the time is over", func() error {
		if since := time.Since(begun); since < partition() {
			return fmt.Errorf("%s", since)
		}
		return nil
	})
	unbroken(c, inside, "on the worker that is cut off")
	now := c.On(victim).MustUnits()
	for _, name := range []string{"api-balancer", "containerd", "kube-proxy", "kubelet"} {
		if u := now[name]; u.PID == 0 {
			c.T.Errorf("unit %s of the worker that is cut off: %+v", name, u)
		}
	}
	c.Machine("heal", victim)
	healed := time.Now()
	c.AllReady(soon, mains, workers)
	c.T.Logf("%s is ready again %.1f s after it was healed", victim, time.Since(healed).Seconds())
	if diff := cmp.Diff(web(pods), web(containers(c, victim))); diff != "" {
		c.T.Errorf("containers of the worker (- before, + after):\n%s", diff)
	}
}

// web are the containers of the workload: a cluster may move others away after five minutes, and probes may end them on a busy host.
func web(all map[string]string) map[string]string {
	kept := map[string]string{}
	for name, id := range all {
		if strings.Contains(name, ": web-") {
			kept[name] = id
		}
	}
	return kept
}

// rebootAlone boots a worker and a control plane that see nobody: what their plans want runs, and they join the others again
// when they see them.
func rebootAlone(c *kit.Cluster) {
	both := []string{c.Main(2), c.Worker(0)}
	c.Machine("cut", both...)
	c.Machine("stop", both...)
	c.Machine("start", both...)
	for machine, names := range map[string][]string{
		c.Main(2):   {"containerd", "etcd", "kubelet"}, // without the others its etcd answers nobody, so its API server does not begin
		c.Worker(0): {"api-balancer", "containerd", "kubelet"},
	} {
		mine := c.On(machine)
		kit.Until(c.T, soon, "the components of "+machine+" run without any network", func() error {
			now, err := mine.Units()
			for _, name := range names {
				if err == nil && now[name].PID == 0 {
					err = fmt.Errorf("%s: %+v", name, now[name])
				}
			}
			return err
		})
	}
	c.Machine("heal", both...)
	healed := time.Now()
	c.AllReady(2*soon, mains, workers)
	c.T.Logf("all are ready %.1f s after the network is back", time.Since(healed).Seconds())
	for _, m := range both {
		kit.Until(c.T, soon, "the pod of "+m+" runs again", func() error {
			for _, p := range c.On(m).Processes() {
				if len(p.Args) > 1 && p.Args[1] == "serve" {
					return nil
				}
			}
			return errors.New("there is none")
		})
	}
	healthyMembers(c)
}
