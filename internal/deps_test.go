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
		from: []string{"..."}, except: []string{"internal/node/...", "internal/control/...", "internal/cli/...", "internal/launch/...", "api/..."},
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
	{from: []string{"internal/node/lock"}, to: []string{"internal/node/...", "internal/reconcile/...", "internal/backend/..."}, why: "the journal knows nobody who writes in it"},
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
	{from: []string{"internal/..."}, except: []string{"internal/cli/..."}, to: []string{"internal/cli/...", "cmd/..."}, why: "nothing imports cli or cmd; only cmd builds concrete things"},
	{
		from: []string{"..."}, except: []string{"internal/backend/hosttest/...", "internal/etcd/etcdtest", "internal/testkit/...", "test/e2e/kit"}, to: []string{"internal/etcd/etcdfake", "internal/etcd/etcdtest", "internal/backend/fake/...", "internal/backend/hosttest/...", "internal/bintest", "internal/certtest", "internal/control/registry/registrytest", "internal/golden", "internal/render/rendertest", "internal/sim", "internal/testkit/..."},
		why: "code that ships never imports a fake or a test kit",
	},
	{from: []string{"internal/...", "cmd/...", "api/..."}, to: []string{"test/..."}, why: "code that ships never imports a test kit"},
	{
		from: []string{"internal/control/registry/...", "internal/attest/..."}, to: []string{"internal/kube/...", "internal/node/...", "internal/control", "internal/control/joinserver", "k8s.io/..."},
		why: "records know no store but by its interface, and verifiers write nothing",
	},
	{from: []string{"internal/attest/..."}, to: []string{"internal/control/..."}, why: "a verifier finds out what is true; what follows is not its question"},
	{from: []string{"..."}, except: []string{"internal/sshhost"}, to: []string{"golang.org/x/crypto/ssh/..."}, why: "SSH only in sshhost"},
	{from: []string{"internal/sshhost"}, to: []string{"internal/core/...", "internal/launch", "internal/machine/...", "internal/node/...", "internal/control/...", "api/..."}, why: "sshhost reaches machines and knows nothing of clusters"},
	{
		from: []string{"internal/rpc"}, to: []string{"api/...", "internal/node/...", "internal/control/...", "internal/kube/...", "internal/ca", "internal/reconcile/...", "internal/backend/...", "internal/launch"},
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
		t.Fatalf("go list found %d packages: the test looks at the wrong folder", len(all))
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
