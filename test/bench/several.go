// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/operate"
)

// Several has the figures of clusters of several machines. Each list has one value per measurement, in seconds.
type Several struct {
	Worker []Timed `json:"worker"` // start of a worker's agent until its node is Ready; the request to join comes at once
	Grow   []Timed `json:"grow"`   // slipway up from one control plane to three
	Five   []Timed `json:"five"`   // start of slipway up until five nodes are Ready
	FiveUp []Timed `json:"fiveUp"` // the whole command
	// The longest time for which a client on a worker had no answer while a control plane's
	Killed []Timed `json:"killed"` // API server was killed
	Lost   []Timed `json:"lost"`   // machine was cut off and stopped; its etcd was a follower
	// The longest time without an acknowledged write while the machine with etcd's leader was cut off and stopped.
	Writes  []Timed `json:"writes"`
	Acked   int     `json:"acked"`   // acknowledged writes
	Missing int     `json:"missing"` // acknowledged writes that are lost
	Joins   *Joins  `json:"joins,omitempty"`
	Live    *Live   `json:"live,omitempty"`
}

// Timed is a value, and how much CPU other processes used while it was measured.
type Timed struct {
	Value  float64 `json:"value"`
	Others float64 `json:"others"` // share of all CPUs
}

// severalLimit is far longer than any round takes.
const severalLimit = 5 * time.Minute

// measureSeveral measures b.several rounds of clusters of several machines.
func (b *bench) measureSeveral(ctx context.Context) error {
	if b.several == 0 {
		return nil
	}
	s := &Several{}
	b.report.Several = s
	var err error
	if s.Joins, err = b.joins(ctx); err != nil {
		return err
	}
	for i := range b.several {
		what := fmt.Sprintf("several machines, round %d", i+1)
		for _, measure := range []func(context.Context, *Several) error{b.growing, b.five} {
			if err := b.quiet(ctx, what); err != nil {
				return err
			}
			if err := b.round(ctx, severalLimit, func(ctx context.Context) error { return measure(ctx, s) }); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
	}
	return nil
}

// round measures a cluster and removes it afterwards.
func (b *bench) round(ctx context.Context, limit time.Duration, measure func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := measure(limited)
	if err != nil && b.keep {
		return err
	}
	return errors.Join(err, b.command(context.WithoutCancel(ctx), "down", "--name", b.cluster).err)
}

// timed measures one value, and how much CPU other processes use meanwhile.
func (b *bench) timed(what string, list *[]Timed, measure func() (seconds float64, err error)) error {
	all, own, mine, begun := 0.0, 0.0, ownCPU()+childrenCPU(), time.Now()
	var err error
	if all, err = busy(); err != nil {
		return err
	}
	if own, err = b.clusterCPU(); err != nil {
		return err
	}
	value, err := measure()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	allNow, err := busy()
	if err != nil {
		return err
	}
	ownNow, err := b.clusterCPU()
	if err != nil {
		return err
	}
	others := (allNow - all) - (ownNow - own) - (ownCPU() + childrenCPU() - mine)
	t := Timed{value, max(0, others/time.Since(begun).Seconds()/float64(b.report.Host.CPUs))}
	*list = append(*list, t)
	b.say("%s: %.2f s, other processes used %.0f %% of the CPUs", what, t.Value, 100*t.Others)
	return nil
}

// clusterCPU returns the CPU time of all machines of the cluster, or 0 if there are none.
func (b *bench) clusterCPU() (float64, error) {
	group, err := findCgroup("slipway/" + b.cluster)
	if err != nil {
		return 0, err
	}
	seconds, err := group.cpu()
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	return seconds, err
}

// main returns the name of a control plane.
func (b *bench) main(i int) string   { return fmt.Sprintf("%s-main-%d", b.cluster, i) }
func (b *bench) worker(i int) string { return fmt.Sprintf("%s-worker-%d", b.cluster, i) }

// up creates a cluster with these numbers of machines, or changes it to them.
func (b *bench) up(ctx context.Context, controlPlanes, workers int) result {
	return b.command(ctx, "up", "--name", b.cluster, "--control-planes", fmt.Sprint(controlPlanes), "--workers", fmt.Sprint(workers))
}

// through returns a client of the API as seen from a machine: through its own API server, or through its balancer.
func (b *bench) through(node string) (api, error) {
	return connect(filepath.Join(b.place.local.RunDir(b.cluster, node), "api.sock"), b.credential())
}

// credential returns the path of the first control plane's kubeconfig, which exists even while the machine is stopped.
func (b *bench) credential() string {
	return filepath.Join(b.place.local.DataDir(b.cluster, b.main(0), "etc-kubernetes"), "super-admin.conf")
}

// readyNodes waits until the named nodes, and at least count nodes, are Ready.
func (a api) readyNodes(ctx context.Context, count int, names ...string) error {
	ready := map[string]bool{}
	return a.follow(ctx, "/api/v1/nodes", func(o object) bool {
		ready[o.Metadata.Name] = o.ready()
		have := 0
		for _, is := range ready {
			if is {
				have++
			}
		}
		for _, name := range names {
			if !ready[name] {
				return false
			}
		}
		return have >= count
	})
}

// kill sends SIGKILL to the processes of a unit.
func (b *bench) kill(node, unit string) error {
	group, err := findCgroup(filepath.Join("slipway", b.cluster, node))
	if err != nil {
		return err
	}
	pids, err := group.units()[unit].pids()
	if err != nil || len(pids) == 0 {
		return errors.Join(fmt.Errorf("kill %s of %s: it is not running", unit, node), err)
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			return fmt.Errorf("kill %s of %s: %w", unit, node, err)
		}
	}
	return nil
}

// lose cuts a machine off first, so that no FIN or RST closes its connections, and then stops it.
func (b *bench) lose(ctx context.Context, node string) error {
	_, cut := operate.CutMachine(ctx, b.inventory, b.cluster, node, "")
	_, stop := operate.StopMachine(ctx, b.inventory, b.cluster, node)
	return errors.Join(cut, stop)
}

func (b *bench) bringBack(ctx context.Context, node string) error {
	_, heal := operate.HealMachine(ctx, b.inventory, b.cluster, node)
	_, start := operate.StartMachine(ctx, b.inventory, b.cluster, node)
	return errors.Join(heal, start)
}

// leads returns the control plane with etcd's leader. It returns an error unless all members answer.
func (b *bench) leads(ctx context.Context) (string, error) {
	var said []struct {
		Endpoint string
		Status   struct {
			Leader uint64
			Header struct {
				ID uint64 `json:"member_id"`
			}
		}
	}
	if err := b.etcdctl(ctx, &said, "endpoint", "status", "--cluster"); err != nil {
		return "", err
	}
	_, machines, err := b.inventory.List(ctx, b.cluster)
	if err != nil {
		return "", err
	}
	for _, m := range machines {
		for _, s := range said {
			if s.Endpoint == "https://"+netip.AddrPortFrom(m.Address, 2379).String() && s.Status.Header.ID == s.Status.Leader {
				return m.Name, nil
			}
		}
	}
	return "", errors.New("find etcd's leader: there is none")
}

// etcdctl runs etcdctl in the first control plane and decodes its JSON output.
func (b *bench) etcdctl(ctx context.Context, answer any, args ...string) error {
	const pki = "/etc/kubernetes/pki/etcd/"
	var out, complaint bytes.Buffer
	code, err := operate.Exec(ctx, b.inventory, b.cluster, b.main(0), machine.Command{
		Args: append([]string{
			"/opt/slipway/bin/etcdctl", "--endpoints=https://127.0.0.1:2379", "--cacert=" + pki + "ca.crt", "--cert=" + pki + "healthcheck-client.crt",
			"--key=" + pki + "healthcheck-client.key", "--write-out=json",
		}, args...), Stdout: &out, Stderr: &complaint,
	})
	if err != nil || code != 0 {
		return errors.Join(fmt.Errorf("etcdctl %v: exit code %d: %s", args, code, complaint.Bytes()), err)
	}
	return json.Unmarshal(out.Bytes(), answer)
}

// settled waits until the agents of these nodes have converged.
func (b *bench) settled(ctx context.Context, nodes ...string) error {
	for _, node := range nodes {
		agent, err := agentclient.Dial(agentclient.Socket(filepath.Join(b.place.local.RunDir(b.cluster, node), "agent.sock")))
		if err != nil {
			return err
		}
		err = poll(ctx, 4*step, func() bool {
			s, err := agent.Status(ctx)
			return err == nil && s.Converged
		})
		if err := errors.Join(err, agent.Close()); err != nil {
			return fmt.Errorf("wait for %s: %w", node, err)
		}
	}
	return nil
}

// workersJoin is the number of workers that join, one after the other, in each round.
const workersJoin = 2

// growing creates a cluster of one control plane and one worker, has more workers join, and then grows it to three control planes.
func (b *bench) growing(ctx context.Context, s *Several) error {
	if err := b.up(ctx, 1, 1).err; err != nil {
		return err
	}
	a, err := b.through(b.main(0))
	if err != nil {
		return err
	}
	for i := range workersJoin {
		if err := b.timed("worker joins", &s.Worker, func() (float64, error) { return b.join(ctx, a, i) }); err != nil {
			return err
		}
	}
	if err := b.timed("control planes 1 to 3", &s.Grow, func() (float64, error) {
		up := b.up(ctx, 3, 1)
		return up.elapsed.Seconds(), up.err
	}); err != nil || s.Live != nil {
		return err
	}
	return b.live(ctx, s)
}

// join boots a machine that joins at once, and returns the seconds from the start of its agent until its node is Ready.
func (b *bench) join(ctx context.Context, a api, i int) (float64, error) {
	name := fmt.Sprintf("%s-extra-%d", b.cluster, i)
	token, err := operate.CreateToken(ctx, b.inventory, b.cluster, operate.TokenOptions{Pool: "worker", Node: name, TTL: 5 * time.Minute})
	if err != nil {
		return 0, err
	}
	var ready time.Time
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := a.readyNodes(ctx, 0, name)
		ready = time.Now()
		return err
	})
	group.Go(func() error { return b.bootFree(ctx, name, i) })
	group.Go(func() error { return b.tell(ctx, name, token) })
	if err := group.Wait(); err != nil {
		return 0, err
	}
	began, err := b.agentBegan(name)
	return ready.Sub(began).Seconds(), err
}

// bootFree boots a machine that is in no cluster.
func (b *bench) bootFree(ctx context.Context, name string, i int) error {
	const beyond = 40 // after the indexes of the spec's machines
	machines, err := machine.New(machine.Config{Root: b.inventory.Dir.Root, Runc: b.runc, Log: b.inventory.Log})
	if err != nil {
		return err
	}
	unlock, err := machines.Lock(ctx, b.cluster, func(string) {})
	if err != nil {
		return err
	}
	defer unlock()
	_, err = machines.Ensure(ctx, machine.Spec{Cluster: b.cluster, Name: name, Index: beyond + i, Binary: b.inventory.Exe})
	return err
}

// tell sends the request to join as soon as the agent listens.
func (b *bench) tell(ctx context.Context, name string, t operate.NewToken) error {
	socket := filepath.Join(b.place.local.RunDir(b.cluster, name), "agent.sock")
	var last error
	err := poll(ctx, 2*time.Millisecond, func() bool {
		_, last = operate.Join(ctx, operate.JoinOptions{Socket: socket, JoinRequest: agentclient.JoinRequest{Endpoints: t.Endpoints, Pin: pin.Pin(t.Pin), Token: t.Token, Node: name}})
		return last == nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// agentBegan returns when the machine's PID 1 started the agent, according to its console.
func (b *bench) agentBegan(name string) (time.Time, error) {
	text, err := os.ReadFile(b.place.local.Console(b.cluster, name))
	if err != nil {
		return time.Time{}, err
	}
	for line := range strings.Lines(string(text)) { // time=2026-11-20T07:00:00.123Z level=INFO msg="agent started" pid=13
		stamp, said, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		if strings.Contains(said, `msg="agent started"`) {
			return time.Parse(time.RFC3339Nano, stamp)
		}
	}
	return time.Time{}, fmt.Errorf("read console of %s: no line \"agent started\"", name)
}

const (
	persistent = 6 // clients on a worker that keep their connections, which the balancer distributes
	unpooled   = 2 // clients on a worker that open a connection for each request

	answersAfter = 100 // answers to each client that end a measurement
	gapLimit     = 30 * time.Second

	readPath = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt" // from etcd
)

// five creates a cluster of three control planes and two workers, and then has it lose parts.
func (b *bench) five(ctx context.Context, s *Several) error {
	var up result
	err := b.timed("five machines", &s.Five, func() (float64, error) {
		var ready time.Duration
		begun := time.Now()
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error {
			up = b.up(ctx, 3, 2)
			return up.err
		})
		group.Go(func() error {
			var a api
			err := poll(ctx, step, func() (ok bool) {
				var err error
				a, err = b.through(b.main(0))
				return err == nil
			})
			if err != nil {
				return err
			}
			err = a.readyNodes(ctx, 5)
			ready = time.Since(begun)
			return err
		})
		err := group.Wait()
		return ready.Seconds(), err
	})
	if err != nil {
		return err
	}
	s.FiveUp = append(s.FiveUp, Timed{up.elapsed.Seconds(), s.Five[len(s.Five)-1].Others})
	return b.lossy(ctx, s)
}

// lossy kills an API server, then stops a machine with a follower, then the one with etcd's leader.
func (b *bench) lossy(ctx context.Context, s *Several) error {
	leader, err := b.leads(ctx)
	if err != nil {
		return err
	}
	follower := b.main(1)
	if follower == leader {
		follower = b.main(2)
	}
	if err := b.timed("API server killed", &s.Killed, func() (float64, error) {
		return b.gap(ctx, func() error { return b.kill(follower, "kube-apiserver") })
	}); err != nil {
		return err
	}
	if err := b.settled(ctx, follower); err != nil {
		return err
	}
	if err := b.timed("machine lost", &s.Lost, func() (float64, error) {
		return b.gap(ctx, func() error { return b.lose(ctx, follower) })
	}); err != nil {
		return err
	}
	if err := b.bringBack(ctx, follower); err != nil {
		return err
	}
	if err := b.settled(ctx, follower); err != nil {
		return err
	}
	return b.timed("leader lost", &s.Writes, func() (float64, error) { return b.writeGap(ctx, s) })
}

// gap returns the longest time, in seconds, for which a client on a worker has no answer when an event happens.
func (b *bench) gap(ctx context.Context, event func() error) (float64, error) {
	var all []*asker
	for i := range persistent + unpooled {
		a, err := b.through(b.worker(0))
		if err != nil {
			return 0, err
		}
		if i >= persistent {
			a = a.unpooled()
		}
		all = append(all, newAsker(func(ctx context.Context) error { return a.expect(ctx, http.MethodGet, readPath, "", http.StatusOK) }))
	}
	working, stop := context.WithCancel(ctx)
	group, working := errgroup.WithContext(working)
	for _, q := range all {
		group.Go(func() error { return q.run(working) })
	}
	err := around(ctx, all, event)
	stop()
	_ = group.Wait() // always the cancelled context
	longest := time.Duration(0)
	for _, q := range all {
		longest = max(longest, q.longest())
	}
	return longest.Seconds(), err
}

// around waits until every client has answers, runs event, and waits until every client has answersAfter more answers.
func around(ctx context.Context, all []*asker, event func() error) error {
	limited, cancel := context.WithTimeoutCause(ctx, gapLimit, fmt.Errorf("a client got fewer than %d answers within %s", answersAfter, gapLimit))
	defer cancel()
	each := func(n int) error {
		for _, q := range all {
			if err := poll(limited, step, func() bool { return q.answered() >= n }); err != nil {
				return fmt.Errorf("%w: got %d; last error: %w", context.Cause(limited), q.answered(), q.complaint())
			}
		}
		return nil
	}
	if err := each(answersAfter / 5); err != nil {
		return err
	}
	for _, q := range all {
		q.reset()
	}
	if err := event(); err != nil {
		return err
	}
	return each(answersAfter)
}

const writePath = "/api/v1/namespaces/default/configmaps"

// writeGap returns the longest time without an acknowledged write when the machine with etcd's leader is lost. Then it counts the
// acknowledged writes that are lost.
func (b *bench) writeGap(ctx context.Context, s *Several) (float64, error) {
	leader, err := b.leads(ctx)
	if err != nil {
		return 0, err
	}
	a, err := b.through(b.worker(0))
	if err != nil {
		return 0, err
	}
	var acked []string
	n, prefix := 0, fmt.Sprintf("bench-%d-", len(s.Writes))
	w := newAsker(func(ctx context.Context) error {
		n++
		name := fmt.Sprint(prefix, n)
		body := fmt.Sprintf(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": %q, "labels": {"bench": "write"}}, "data": {"value": "kept"}}`, name)
		if err := a.expect(ctx, http.MethodPost, writePath, body, http.StatusCreated); err != nil {
			return err
		}
		acked = append(acked, name)
		return nil
	})
	working, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.run(working) // always the cancelled context
	}()
	err = around(ctx, []*asker{w}, func() error { return b.lose(ctx, leader) })
	stop()
	<-ended
	if err != nil {
		return 0, err
	}
	missing, err := a.missing(ctx, acked)
	s.Acked, s.Missing = s.Acked+len(acked), s.Missing+missing
	return w.longest().Seconds(), err
}

// missing counts the acknowledged writes that are lost.
func (a api) missing(ctx context.Context, acked []string) (int, error) {
	r, err := a.do(ctx, http.MethodGet, writePath+"?labelSelector=bench%3Dwrite", "")
	if err != nil {
		return 0, fmt.Errorf("list acknowledged writes: %w", err)
	}
	var list struct{ Items []object }
	if err := errors.Join(json.NewDecoder(r.Body).Decode(&list), r.Body.Close()); err != nil {
		return 0, fmt.Errorf("list acknowledged writes: %w", err)
	}
	var there []string
	for _, o := range list.Items {
		there = append(there, o.Metadata.Name)
	}
	slices.Sort(there)
	gone := 0
	for _, name := range acked {
		if _, found := slices.BinarySearch(there, name); !found {
			gone++
		}
	}
	return gone, nil
}
