// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/testkit"
)

// On returns the same cluster with another machine as Node.
func (c *Cluster) On(machine string) *Cluster {
	mine := *c
	mine.Node = machine
	return &mine
}

// For returns the same cluster for another test, such as a subtest.
func (c *Cluster) For(t testing.TB) *Cluster {
	mine := *c
	mine.T = t
	return &mine
}

// Part runs a subtest. The cluster that it passes on fails that subtest.
func (c *Cluster) Part(t *testing.T, name string, test func(c *Cluster)) (passed bool) {
	t.Helper()
	return t.Run(name, func(t *testing.T) { test(c.For(t)) })
}

// Main returns the name of a control plane of a cluster that slipway up --control-planes has created.
func (c *Cluster) Main(i int) string { return fmt.Sprintf("%s-main-%d", c.Name, i) }

// Worker returns the name of a worker of a cluster that slipway up --workers has created.
func (c *Cluster) Worker(i int) string { return fmt.Sprintf("%s-worker-%d", c.Name, i) }

// Node is an entry of slipway node list.
type Node struct {
	Name      string   `json:"name"`
	Roles     []string `json:"roles"`
	Addresses []string `json:"addresses"`
	Ready     bool     `json:"ready"`
	Version   string   `json:"version"`
	PodCIDR   string   `json:"podCIDR"`
	Member    string   `json:"member"`
	Key       string   `json:"key"`
	Waiting   string   `json:"waiting"`
}

// Nodes returns the output of slipway node list, by name.
func (c *Cluster) Nodes() (map[string]Node, error) {
	c.T.Helper()
	r := c.Slipway("node", "list", "--output", "json")
	if r.Code != 0 {
		return nil, errors.New(r.String())
	}
	var list []Node
	if err := json.Unmarshal([]byte(r.Out), &list); err != nil {
		return nil, fmt.Errorf("read nodes: %w: %s", err, r)
	}
	nodes := map[string]Node{}
	for _, n := range list {
		nodes[n.Name] = n
	}
	return nodes, nil
}

// AllReady waits until the cluster has exactly these numbers of nodes, all of them ready, with etcd as a voter on each control plane, and
// until each agent reports that its machine has converged, except those of [Cluster.Extra].
func (c *Cluster) AllReady(limit time.Duration, controlPlanes, workers int) map[string]Node {
	c.T.Helper()
	var nodes map[string]Node
	testkit.Until(c.T, limit, fmt.Sprintf("%d control planes and %d workers are ready", controlPlanes, workers), func() (err error) {
		if nodes, err = c.Nodes(); err != nil {
			return err
		}
		voters := 0
		for _, n := range nodes {
			if !n.Ready || n.Waiting != "" {
				return fmt.Errorf("node is not ready: %+v", n)
			}
			if n.Member == "voter" {
				voters++
			}
		}
		if voters != controlPlanes || len(nodes) != controlPlanes+workers {
			return fmt.Errorf("got %d nodes and %d voters", len(nodes), voters)
		}
		s, err := c.Status()
		for _, m := range s.Machines {
			if extra := strings.HasPrefix(m.Name, c.Name+"-extra-"); !extra && (m.Node == nil || !m.Node.Converged) {
				return fmt.Errorf("machine %s: %s", m.Name, s.Verdict)
			}
		}
		return err
	})
	return nodes
}

// Machine runs slipway machine with the verb stop, start, cut or heal.
func (c *Cluster) Machine(verb string, machines ...string) {
	c.T.Helper()
	for _, m := range machines {
		if r := c.Must("machine", verb, m); !strings.Contains(r.Out, m) {
			c.T.Fatal(r)
		}
	}
}

// Must is like Slipway, but fails the test unless the command succeeds.
func (c *Cluster) Must(args ...string) Result {
	c.T.Helper()
	r := c.Slipway(args...)
	if r.Code != 0 {
		c.T.Fatal(r)
	}
	return r
}

// TryEtcdctl runs etcdctl in the machine. It fails while etcd elects a leader.
func (c *Cluster) TryEtcdctl(args string) (string, error) {
	c.T.Helper()
	const pki = "/etc/kubernetes/pki/etcd/"
	r := c.TryExec(nil, "etcdctl --endpoints=https://127.0.0.1:2379 --cacert="+pki+"ca.crt --cert="+pki+"healthcheck-client.crt --key="+pki+
		"healthcheck-client.key "+args)
	if r.Code != 0 {
		return "", errors.New(r.String())
	}
	return r.Out, nil
}

// Etcdctl repeats TryEtcdctl until it succeeds.
func (c *Cluster) Etcdctl(args string) (out string) {
	c.T.Helper()
	testkit.Until(c.T, upLimit, "etcd of "+c.Node+" answers", func() (err error) {
		out, err = c.TryEtcdctl(args)
		return err
	})
	return out
}

// Leader returns the name of the machine with etcd's leader.
func (c *Cluster) Leader() (name string) {
	c.T.Helper()
	testkit.Until(c.T, upLimit, "etcd has a leader", func() (err error) {
		name, err = c.leader()
		return err
	})
	return name
}

func (c *Cluster) leader() (string, error) {
	c.T.Helper()
	var members struct {
		Members []struct {
			ID   uint64 `json:"ID"`
			Name string `json:"name"`
		} `json:"members"`
	}
	var status []struct {
		Status struct {
			Leader uint64 `json:"leader"`
		} `json:"Status"`
	}
	err := errors.Join(json.Unmarshal([]byte(c.Etcdctl("member list --write-out json")), &members),
		json.Unmarshal([]byte(c.Etcdctl("endpoint status --write-out json")), &status))
	if err != nil {
		return "", err
	}
	for _, m := range members.Members {
		if len(status) == 1 && m.ID == status[0].Status.Leader {
			return m.Name, nil
		}
	}
	return "", fmt.Errorf("find leader: none of members %+v: status %+v", members, status)
}

// Machines returns the names of all machines of the cluster on this host.
func (c *Cluster) Machines() []string {
	c.T.Helper()
	found, err := filepath.Glob(filepath.Join(Root, "machines", c.Name, "*", "data"))
	if err != nil {
		c.T.Fatal(err)
	}
	for i, path := range found {
		found[i] = filepath.Base(filepath.Dir(path))
	}
	return found
}

// Token is the output of slipway token create.
type Token struct {
	ID        string   `json:"id"`
	Token     string   `json:"token"`
	Pin       string   `json:"pin"`
	Cluster   string   `json:"cluster"`
	Endpoints []string `json:"endpoints"`
}

// NewToken creates a join token.
func (c *Cluster) NewToken(args ...string) Token {
	c.T.Helper()
	r := c.Must(append([]string{"token", "create", "--output", "json"}, args...)...)
	var t Token
	if err := json.Unmarshal([]byte(r.Out), &t); err != nil || t.Token == "" {
		c.T.Fatalf("read token: %v", err) // without the output, which may contain it
	}
	return t
}

// TryJoin runs slipway join in the machine, with the token on standard input. An empty token means that the cluster knows the machine's
// key.
func (c *Cluster) TryJoin(t Token, args ...string) Result {
	c.T.Helper()
	line := []string{"exec", "--name", c.Name, c.Node, "--", "/opt/slipway/bin/slipway", "join", "--pin", t.Pin}
	for _, e := range t.Endpoints {
		line = append(line, "--endpoint", e)
	}
	if t.Token == "" {
		line = append(line, "--known")
	}
	return run(c.T, upLimit, strings.NewReader(t.Token), c.Bin, append(line, args...)...)
}

// Join is like TryJoin, but waits until the machine has joined.
func (c *Cluster) Join(t Token, args ...string) {
	c.T.Helper()
	if r := c.TryJoin(t, append(args, "--wait", "--timeout", "3m")...); r.Code != 0 {
		c.T.Fatal(r)
	}
}

// Steady returns the PIDs of units by name, without the units that take part in leader election: those exit by themselves when they
// cannot renew their lease for ten seconds, which happens on a loaded host.
func Steady(units map[string]Unit) map[string]int {
	pids := map[string]int{}
	for name, u := range units {
		if name != "kube-controller-manager" && name != "kube-scheduler" {
			pids[name] = u.PID
		}
	}
	return pids
}

// OnceOnly lists the files below /etc/kubernetes/pki that are created only once in the life of a cluster.
func OnceOnly() []string {
	return []string{
		"ca.crt", "ca.key", "etcd/ca.crt", "etcd/ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "join-ca.crt", "join-ca.key", "sa.key", "sa.pub",
		"encryption.key",
	}
}

// Authorities returns the digests of those files of OnceOnly that the machine has.
func (c *Cluster) Authorities() map[string]string {
	c.T.Helper()
	found := map[string]string{}
	for _, file := range OnceOnly() {
		text, err := os.ReadFile(c.Data("etc-kubernetes", "pki", file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			c.T.Fatal(err)
		}
		found[file] = fmt.Sprintf("%x", sha256.Sum256(text))[:16]
	}
	return found
}

// Identity returns what makes a cluster the same one: the digests of all files of OnceOnly on the given machines (default: Node), and the
// cluster's UID.
func (c *Cluster) Identity(machines ...string) map[string]string {
	c.T.Helper()
	if len(machines) == 0 {
		machines = []string{c.Node}
	}
	id := map[string]string{"UID": c.UID()}
	for _, m := range machines {
		found := c.On(m).Authorities()
		if len(found) != len(OnceOnly()) {
			c.T.Fatalf("key material of %s: got %v, want all of %v", m, found, OnceOnly())
		}
		for file, sum := range found {
			id[m+"/"+file] = sum
		}
	}
	return id
}

// Changed lists the keys of before whose values after differ or are missing.
func Changed(before, after map[string]string) (keys []string) {
	for key, value := range before {
		if after[key] != value {
			keys = append(keys, key)
		}
	}
	return keys
}

// UID returns the UID of the namespace kube-system, which identifies a cluster. It waits for an API that is not ready yet.
func (c *Cluster) UID() string {
	c.T.Helper()
	return c.Field("namespace/kube-system", "{.metadata.uid}")
}

// Field returns a field of an API object. It waits for an API that is not ready yet.
func (c *Cluster) Field(object, path string) (value string) {
	c.T.Helper()
	testkit.Until(c.T, 2*time.Minute, "the API returns "+path+" of "+object, func() error {
		r := c.TryKubectl("", "get", object, "--output", "jsonpath="+path, "--request-timeout=5s")
		if value = r.Out; r.Code != 0 || value == "" {
			return errors.New(r.String())
		}
		return nil
	})
	return value
}

// WriteMarker creates an API object that [Cluster.CheckMarker] expects to find later.
func (c *Cluster) WriteMarker() {
	c.T.Helper()
	c.Kubectl("create", "configmap", "written-before", "--from-literal=value=kept")
}

// CheckMarker fails the test if the object of [Cluster.WriteMarker] is lost or changed.
func (c *Cluster) CheckMarker() {
	c.T.Helper()
	if got := c.Field("configmap/written-before", "{.data.value}"); got != "kept" {
		c.T.Errorf("ConfigMap written-before: got value %q, want %q", got, "kept")
	}
}

// Containers returns ID and number of restarts of each container of the pods that kubectl get pods selects with these arguments, keyed by
// node, pod and container. It ignores pods that are being deleted, and mirror pods: static pods are compared as units.
func (c *Cluster) Containers(args ...string) map[string]string {
	c.T.Helper()
	var pods struct {
		Items []struct {
			Metadata struct {
				Name, DeletionTimestamp string
				Annotations             map[string]string
			}
			Spec   struct{ NodeName string }
			Status struct {
				ContainerStatuses []struct {
					Name, ContainerID string
					RestartCount      int
					State             struct{ Running struct{ StartedAt string } }
				}
			}
		}
	}
	out := c.Kubectl(append([]string{"get", "pods", "--all-namespaces", "--output", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &pods); err != nil {
		c.T.Fatal(err)
	}
	found := map[string]string{}
	for _, p := range pods.Items {
		for _, s := range p.Status.ContainerStatuses {
			if p.Metadata.DeletionTimestamp == "" && p.Metadata.Annotations["kubernetes.io/config.mirror"] == "" {
				found[p.Spec.NodeName+": "+p.Metadata.Name+"/"+s.Name] = fmt.Sprintf("%s since %s, %d restarts", s.ContainerID, s.State.Running.StartedAt, s.RestartCount)
			}
		}
	}
	return found
}
