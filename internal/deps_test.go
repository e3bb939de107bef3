// SPDX-License-Identifier: Apache-2.0

// Package internal_test holds the policies of the whole repository: who may import whom, and what every file carries.
package internal_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/slipway-project/slipway/"

// neverArrow forbids imports. Patterns end in "/..." for a tree, otherwise they name one package; paths inside the module
// are written without the module's name.
type neverArrow struct {
	from   []string
	except []string // packages of from that may
	to     []string
	why    string
}

// floors are the packages from the lowest to the highest. A package may import packages of lower floors and of its own tree, but
// not of another tree on its own floor: what two trees of a floor have in common belongs below them. Floors are tested for
// shipping code only; tests may look down from anywhere.
var floors = [][]string{
	{"internal/core/endpoint"}, // a value type that the API's types have fields of
	{
		"api/...", "internal/sleep", "internal/trace", "internal/broadcast", "internal/machine/process", "internal/etcd/etcdpb", "internal/golden",
		"internal/testkit", "internal/bintest",
	},
	{"internal/core/...", "internal/durable"}, // decisions, without I/O; files that survive a crash
	{"internal/certtest"},
	{
		"internal/artifact/...", "internal/attest/...", "internal/ca", "internal/etcd/...", "internal/kube", "internal/reconcile", "internal/render/...",
		"internal/rpc", "internal/sshhost",
	},
	{"internal/backend/...", "internal/machine", "internal/initclient", "internal/outputdir", "internal/report"},
	{"internal/node/...", "internal/bundle"},                            // the agent
	{"internal/control/...", "internal/balancer", "internal/preflight"}, // what a control plane does for its cluster
	{"internal/proxy"},
	{"internal/agentclient/...", "internal/clusterdir"}, // from here on, the operator's side
	{"internal/provider/..."},
	{"internal/inventory"},
	{"internal/operate"},
	{"internal/bootstrap"},
	{"internal/cli/..."},
	{"cmd/..."}, // the only package that builds concrete things
	{"internal", "internal/sim", "internal/testkit/cluster", "test/..."},
}

var neverArrows = []neverArrow{
	{
		from: []string{"internal/core/..."}, except: []string{"internal/core/catalog/genflags", "internal/core/catalog/genfields"}, to: []string{"os/...", "net", "net/http", "os/exec", "log/...", "context", "math/rand/...", "syscall", "golang.org/x/sys/..."},
		why: "core is pure: no I/O, no clock, no context, no logger",
	},
	{
		from: []string{"internal/core/plan"}, to: []string{"internal/core/config", "internal/core/planner", "internal/core/spec", "internal/core/catalog"},
		why: "the plan does not know why",
	},
	{
		from: []string{"internal/node/...", "internal/backend/...", "internal/reconcile/..."},
		to:   []string{"internal/core/spec", "internal/core/catalog", "internal/core/config", "internal/core/planner", "internal/control/..."},
		why:  "the agent never plans",
	},
	{
		from: []string{"internal/balancer"}, to: []string{"internal/control/...", "internal/kube/...", "internal/core/config", "internal/core/planner", "internal/node", "internal/proxy", "google.golang.org/grpc/..."},
		why: "the balancer is a small process that needs the roster file and nothing else",
	},
	{from: []string{"internal/backend/supervise"}, to: []string{"internal/backend/fake", "internal/backend/systemd"}, why: "siblings never import siblings"},
	{from: []string{"internal/backend/systemd"}, to: []string{"internal/backend/fake", "internal/backend/supervise"}, why: "siblings never import siblings"},
	{from: []string{"..."}, except: []string{"internal/backend/systemd"}, to: []string{"github.com/coreos/go-systemd/v22/dbus", "github.com/godbus/..."}, why: "D-Bus only in backend/systemd"},
	{
		from: []string{"internal/backend/files", "internal/backend/probe", "internal/backend/dataguard", "internal/backend/pods", "internal/backend/units"}, to: []string{"internal/backend/supervise", "internal/backend/fake", "internal/backend/systemd"},
		why: "what the backends share knows none of them",
	},
	{
		from: []string{"internal/render/..."}, except: []string{"internal/render/rendertest"}, to: []string{"os/...", "net", "net/http", "os/exec", "log/...", "context", "math/rand/...", "internal/core/config", "internal/core/planner", "internal/core/spec", "internal/core/catalog", "internal/backend/...", "internal/node/..."},
		why: "a renderer reads a plan and gives text: no I/O, and it does not know why",
	},
	{from: []string{"internal/render/fleet"}, to: []string{"internal/render/systemd", "internal/render/staticpod"}, why: "siblings never import siblings"},
	{
		from: []string{"..."}, except: []string{"internal/node/...", "internal/agentclient/...", "api/..."},
		to: []string{"api/node/..."}, why: "proto types are translated at the border, once",
	},
	{
		// The types of the YAML document are the types of the completed configuration: one noun, one type. Package spec names them for
		// all others; placement and machine are below it.
		from: []string{"..."}, except: []string{"internal/core/spec", "internal/core/placement", "internal/core/machine", "api/..."}, to: []string{"api/cluster/..."},
		why: "other packages use the types of a spec under the names that package spec gives them",
	},
	{from: []string{"internal/node/initserver"}, to: []string{"internal/node/joinclient"}, why: "init and join meet in the node lock and nowhere else"},
	{
		from: []string{"internal/node/prepare"}, to: []string{"internal/node", "internal/core/spec", "internal/core/config", "internal/core/plan", "internal/core/planner", "internal/core/catalog", "internal/backend/...", "internal/reconcile/...", "google.golang.org/grpc/..."},
		why: "the tasks of the operating system's preparation get words and look at the machine: no plan, no agent",
	},
	{from: []string{"internal/node/lock"}, to: []string{"internal/node/...", "internal/reconcile/...", "internal/backend/..."}, why: "the journal does not know its writers"},
	{
		from: []string{"..."}, except: []string{"internal/node/initserver", "internal/initclient", "api/..."},
		to: []string{"api/init/..."}, why: "proto types are translated at the border, once",
	},
	{from: []string{"..."}, to: []string{"k8s.io/kubernetes/..."}, why: "the monorepo is not for import"},
	{
		from: []string{"internal/control"}, to: []string{"internal/control/...", "api/...", "internal/etcd/...", "internal/node/..."},
		why: "the control role knows the cluster, and not what runs beside it on a control plane",
	},
	{
		from: []string{"internal/control/joinserver"}, to: []string{"internal/control/registry/...", "internal/control/members/...", "internal/control/rosters/...", "internal/control/tickets/...", "internal/kube/...", "internal/ca", "internal/node/...", "k8s.io/..."},
		why: "the join service speaks a protocol: who decides, plans and signs is behind its interfaces",
	},
	{
		from: []string{"internal/node/joinclient"}, to: []string{"internal/node", "internal/node/initserver", "internal/node/lock", "internal/backend/...", "internal/reconcile/...", "internal/durable"},
		why: "the join client asks and checks; what follows from a grant is the enrolment's affair",
	},
	{
		from: []string{"internal/control/admin"}, to: []string{"internal/etcd/...", "internal/node/...", "internal/control/joinserver", "k8s.io/..."},
		why: "the admin service asks its sources and is none",
	},
	{from: []string{"..."}, except: []string{"internal/kube/..."}, to: []string{"k8s.io/client-go/..."}, why: "client-go only in kube"},
	{from: []string{"..."}, except: []string{"internal/etcd/..."}, to: []string{"go.etcd.io/...", "go.uber.org/zap/..."}, why: "etcd's client only in etcd"},
	{
		from: []string{"internal/control/lease", "internal/control/rollout"}, to: []string{"internal/etcd/...", "internal/kube/...", "internal/node/...", "internal/reconcile/...", "internal/control", "internal/control/members", "internal/control/joinserver"},
		why: "who waits for a turn and who asks the others meet in main",
	},
	{
		from: []string{"internal/control/members"}, to: []string{"internal/etcd/...", "internal/kube/...", "internal/node/...", "internal/control", "internal/control/joinserver"},
		why: "who decides about members asks an interface: the simulation has another etcd",
	},
	{from: []string{"internal/provider/local"}, to: []string{"internal/provider/ssh"}, why: "siblings never import siblings"},
	{from: []string{"internal/provider/ssh"}, to: []string{"internal/provider/local"}, why: "siblings never import siblings"},
	{from: []string{"internal/provider"}, to: []string{"internal/provider/..."}, why: "the interfaces do not know who implements them"},
	{
		from: []string{"..."}, except: []string{"internal/backend/hosttest/...", "internal/etcd/etcdtest", "internal/testkit/...", "test/e2e/kit"}, to: []string{"internal/agentclient/agenttest", "internal/etcd/etcdfake", "internal/etcd/etcdtest", "internal/backend/fake/...", "internal/backend/hosttest/...", "internal/bintest", "internal/control/registry/registrytest", "internal/golden", "internal/render/rendertest", "internal/sim", "internal/testkit/..."},
		why: "code that ships never imports a fake or a test kit",
	},
	{from: []string{"internal/...", "cmd/...", "api/..."}, to: []string{"test/..."}, why: "code that ships never imports a test kit"},
	{
		from: []string{"internal/control/registry/...", "internal/attest/..."}, to: []string{"internal/kube/...", "internal/node/...", "internal/control", "internal/control/joinserver", "k8s.io/..."},
		why: "records know no store but by its interface, and verifiers write nothing",
	},
	{from: []string{"internal/attest/..."}, to: []string{"internal/control/..."}, why: "a verifier finds out what is true; what follows is not its question"},
	{from: []string{"..."}, except: []string{"internal/sshhost"}, to: []string{"golang.org/x/crypto/ssh/..."}, why: "SSH only in sshhost"},
	{from: []string{"internal/sshhost"}, to: []string{"internal/core/...", "internal/provider/...", "internal/machine/...", "internal/node/...", "internal/control/...", "api/..."}, why: "sshhost reaches machines and knows nothing of clusters"},
	{
		from: []string{"internal/rpc"}, to: []string{"api/...", "internal/node/...", "internal/control/...", "internal/kube/...", "internal/ca", "internal/reconcile/...", "internal/backend/..."},
		why: "rpc knows who may talk, never what is said",
	},
}

type listed struct {
	ImportPath string
	Imports    []string
}

func TestNeverArrows(t *testing.T) {
	t.Parallel()
	packages := list(t)
	for _, rule := range neverArrows {
		matched := false
		for _, p := range packages {
			from := strings.TrimPrefix(p.ImportPath, module)
			if !matches(rule.from, from) {
				continue
			}
			matched = true
			if matches(rule.except, from) {
				continue
			}
			for _, imported := range p.Imports {
				if to := strings.TrimPrefix(imported, module); matches(rule.to, to) {
					t.Errorf("%s imports %s: %s", from, to, rule.why)
				}
			}
		}
		if !matched {
			t.Errorf("stale rule: no package matches %v (%s)", rule.from, rule.why)
		}
	}
}

// TestFloors checks that imports go down only.
func TestFloors(t *testing.T) {
	t.Parallel()
	// find returns the floor of a package and its tree there. The longest pattern that matches counts.
	find := func(path string) (floor int, tree string) {
		floor = -1
		for i, patterns := range floors {
			for _, p := range patterns {
				if matches([]string{p}, path) && len(p) > len(tree) {
					floor, tree = i, p
				}
			}
		}
		return floor, tree
	}
	used := map[string]bool{}
	for _, p := range list(t) {
		from := strings.TrimPrefix(p.ImportPath, module)
		floor, tree := find(from)
		if floor < 0 {
			t.Errorf("%s is on no floor: add it to floors", from)
			continue
		}
		used[tree] = true
		for _, imported := range p.Imports {
			to, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			if below, other := find(to); below > floor || below == floor && other != tree {
				t.Errorf("%s (floor %d) imports %s (floor %d): imports go down only", from, floor, to, below)
			}
		}
	}
	for _, patterns := range floors {
		for _, p := range patterns {
			if !used[p] {
				t.Errorf("stale floor: no package matches %s", p)
			}
		}
	}
}

func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p listed
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 5 {
		t.Fatalf("go list found %d packages: the test looks at the wrong directory", len(all))
	}
	return all
}

func matches(patterns []string, path string) bool {
	for _, p := range patterns {
		tree, isTree := strings.CutSuffix(p, "...")
		switch {
		case !isTree && p == path,
			isTree && (tree == "" || path+"/" == tree || strings.HasPrefix(path, tree)):
			return true
		}
	}
	return false
}
