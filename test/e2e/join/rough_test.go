// SPDX-License-Identifier: Apache-2.0

package join_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// authorities are what a cluster has once: its CAs' keys on a machine, as far as they are there.
func authorities(c *kit.Cluster) map[string]string {
	c.T.Helper()
	found := map[string]string{}
	for _, file := range []string{"ca.key", "etcd/ca.key", "front-proxy-ca.key", "join-ca.key", "sa.key", "encryption.key"} {
		text, err := os.ReadFile(c.Data("etc-kubernetes", "pki", file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			c.T.Fatal(err)
		}
		sum := sha256.Sum256(text)
		found[file] = fmt.Sprintf("%x", sum[:8])
	}
	return found
}

func changed(before, after map[string]string) (files []string) {
	for file, sum := range before {
		if after[file] != sum {
			files = append(files, file)
		}
	}
	return files
}

// TestUpKilledEverySecond kills the command in every second of the making of a cluster, and runs it again.
func TestUpKilledEverySecond(t *testing.T) {
	c := kit.New(t, "rough-up")
	seen, kills, begun := map[string]string{}, 0, time.Now()
	for done := false; !done; kills++ {
		if time.Since(begun) > 10*time.Minute {
			t.Fatalf("the cluster does not come up although each of %d ups goes on", kills)
		}
		cmd := c.Start("up", "--control-planes", "3")
		ended := make(chan struct{})
		var err error
		go func() {
			err = cmd.Wait()
			close(ended)
		}()
		select {
		case <-ended:
			if err != nil {
				t.Fatalf("up %d: %v\n%s", kills, err, cmd.Said())
			}
			done = true
		case <-time.After(time.Second + time.Duration(kills/20)*time.Second): // on a slow host none would ever look at all machines
			_ = cmd.Process.Kill()
			<-ended
		}
		now := authorities(c)
		if diff := changed(seen, now); len(diff) > 0 {
			t.Fatalf("after up %d these were made anew: %v", kills, diff)
		}
		seen = now
	}
	t.Logf("%d ups were killed", kills-1)
	if kills < 3 {
		t.Error("that is not in every second of it")
	}
	oneCluster(c, 3)
}

// oneCluster: all control planes are in one cluster, with one set of authorities.
func oneCluster(c *kit.Cluster, mains int) {
	c.T.Helper()
	c.AllReady(soon, mains, 0)
	for i := 1; i < mains; i++ {
		if diff := cmp.Diff(authorities(c.On(c.Main(0))), authorities(c.On(c.Main(i)))); diff != "" {
			c.T.Errorf("authorities (- %s, + %s):\n%s", c.Main(0), c.Main(i), diff)
		}
	}
}

// TestTwoUpsAtOnce: and a machine that joins loses its power at every step on its way. The end is the same.
func TestTwoUpsAtOnce(t *testing.T) {
	c := kit.New(t, "rough-join")
	first, second := c.Start("up", "--control-planes", "3"), c.Start("up", "--control-planes", "3")
	joiner := c.On(c.Main(1))
	for _, moment := range []string{
		joiner.Data("slipway", "state", "join-target"), joiner.Data("slipway", "plan", "plan.json"), joiner.Data("etc-kubernetes", "pki", "ca.key"),
		joiner.Data("slipway", "state", "roster.json"), joiner.Data("slipway", "state", "etcd-permit"), joiner.Data("etcd", "member", "wal"),
		joiner.Data("slipway", "state", "etcd-voter"),
	} {
		kit.Until(t, soon, moment+" exists", func() error { _, err := os.Stat(moment); return err })
		c.Machine("stop", joiner.Node)
		c.Machine("start", joiner.Node)
	}
	_, _ = first.Wait(), second.Wait() // they give up when one machine goes down again and again
	c.MustUp()
	oneCluster(c, 3)
	if said := c.Etcdctl("member list"); strings.Count(said, ", started, ") != 3 {
		t.Errorf("members:\n%s", said)
	}
}
