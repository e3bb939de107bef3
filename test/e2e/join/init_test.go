// SPDX-License-Identifier: Apache-2.0

package join_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/slipway-project/slipway/internal/node/initserver"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// invited is a machine that somebody else has booted, and whose owner makes an init secret on its console.
func invited(c *kit.Cluster, i int) (machine *kit.Cluster, secret string) {
	c.T.Helper()
	machine = c.Extra(i, nil)
	var made struct{ Secret, Key, Address, Lock string }
	if err := json.Unmarshal([]byte(machine.Exec("/opt/slipway/bin/slipway init-secret create --output json")), &made); err != nil {
		c.T.Fatalf("no init secret: %v", err) // never what was said
	}
	if made.Key != machine.Pin() || made.Address != address(machine) || made.Lock != "free" || made.Secret == "" {
		c.T.Fatalf("the machine says that it is %s at %s, %s; it is %s at %s", made.Key, made.Address, made.Lock, machine.Pin(), address(machine))
	}
	if out := machine.Exec("/opt/slipway/bin/slipway identity"); !strings.Contains(out, machine.Pin()) {
		c.T.Errorf("slipway identity: %s", out)
	}
	return machine, made.Secret
}

// founder is a machine that somebody else has booted, with an init secret.
func founder(c *kit.Cluster, i int) (machine *kit.Cluster, secret string) {
	c.T.Helper()
	secret, file := initserver.NewSecret()
	return c.Extra(i, map[string][]byte{"init-secret.json": file}), secret
}

// address is the machine's in the cluster's network.
func address(c *kit.Cluster) string {
	c.T.Helper()
	f := strings.Fields(c.Exec("ip -4 -oneline address show eth0"))
	before, _, _ := strings.Cut(f[3], "/")
	return before
}

// initialise runs slipway init on one machine, the operator's, against another one. Operators have folders of their own, and the
// component store of the machine that they sit at.
func initialise(c, operator, machine *kit.Cluster, who, name, secret string) kit.Result {
	c.T.Helper()
	root := "/root/" + who
	script := fmt.Sprintf("mkdir -p %[1]s && ln -sfn /var/lib/slipway/store %[1]s/store && exec /opt/slipway/bin/slipway init --root %[1]s --name %[2]s --server %[3]s --pin %[4]s --timeout 5m",
		root, name, address(machine), machine.Pin())
	return operator.TryExec(strings.NewReader(secret), script)
}

func committed(c *kit.Cluster) bool {
	return c.TryExec(nil, "test -e /etc/kubernetes/admin.conf").Code == 0
}

// TestTwoInitsOnOneMachine: two operators who both have the secret want two clusters of the same machine.
func TestTwoInitsOnOneMachine(t *testing.T) {
	c := kit.New(t, "inits")
	machine, secret := invited(c, 0)
	operator := c.Extra(1, nil)
	results := make([]kit.Result, 2)
	var work sync.WaitGroup
	for i := range results {
		work.Go(func() {
			results[i] = initialise(c, operator, machine, fmt.Sprintf("operator-%d", i), fmt.Sprintf("cluster-%d", i), secret)
		})
	}
	work.Wait()
	winner := 0
	if results[0].Code != 0 {
		winner = 1
	}
	if results[winner].Code != 0 || results[1-winner].Code == 0 {
		t.Fatalf("want one winner:\n%s\n%s", results[0], results[1])
	}
	t.Logf("the other one was told: %s", strings.TrimSpace(results[1-winner].Err))
	if said := machine.Process("etcd"); !strings.Contains(strings.Join(said.Args, " "), fmt.Sprintf("--initial-cluster-token=cluster-%d", winner)) {
		t.Errorf("the cluster is not the winner's: %v", said.Args)
	}
	// The winner asks again, as if the answer had been lost: it is the same cluster.
	before := authorities(machine)
	if r := initialise(c, operator, machine, fmt.Sprintf("operator-%d", winner), fmt.Sprintf("cluster-%d", winner), secret); r.Code != 0 {
		t.Error(r)
	}
	if diff := changed(before, authorities(machine)); len(before) < 6 || len(diff) > 0 {
		t.Errorf("authorities %v; made anew: %v", before, diff)
	}
	if r := initialise(c, operator, machine, "operator-2", "cluster-2", secret); r.Code == 0 {
		t.Errorf("the secret was good a second time: %s", r)
	}
}

// TestTwoInitsOfOneSpec: one operator begins the same cluster on two machines at the same moment.
func TestTwoInitsOfOneSpec(t *testing.T) {
	c := kit.New(t, "inits")
	operator := c.Extra(2, nil)
	machines, results := make([]*kit.Cluster, 2), make([]kit.Result, 2)
	var secrets [2]string
	for i := range machines {
		machines[i], secrets[i] = founder(c, i)
	}
	var work sync.WaitGroup
	for i, m := range machines {
		work.Go(func() { results[i] = initialise(c, operator, m, "operator", "one", secrets[i]) })
	}
	work.Wait()
	if (results[0].Code == 0) == (results[1].Code == 0) {
		t.Errorf("want exactly one cluster:\n%s\n%s", results[0], results[1])
	}
	for i, m := range machines {
		if has := committed(m); has != (results[i].Code == 0) {
			t.Errorf("machine %d has a cluster: %t, and its init ended with %d", i, has, results[i].Code)
		}
	}
}
