// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
)

func testPin(n int) pin.Pin { return pin.Pin(fmt.Sprintf("sha256:%064x", n)) }

func addr(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 89, 0, byte(n)}) }

func noon() time.Time { return time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) }

func rules() Policy {
	return Policy{
		Cluster: "dev", APIServer: "1.36.4", PodCIDR: netip.MustParsePrefix("10.244.0.0/16"), NodePodPrefix: 24,
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"), Pools: map[string]Pool{"main": {ControlPlane: true}, "worker": {}},
	}
}

func reserve(n int) func(*Policy) { return func(p *Policy) { p.Reserved = []netip.Addr{addr(n)} } }

// at sends the request from the n-th address. The machine at address gone, if not 0, is known to be unreachable.
func at(n, gone int) func(*Request) {
	return func(r *Request) {
		r.Address = addr(n)
		if gone > 0 {
			r.Gone = addr(gone)
		}
	}
}

func byAddress(p *Policy) {
	p.Pools = map[string]Pool{"main": {ControlPlane: true, ByAddress: true}, "worker": {ByAddress: true}}
}

func podCIDR(n int) netip.Prefix {
	p, _ := PodCIDR(netip.MustParsePrefix("10.244.0.0/16"), 24, n)
	return p
}

// some returns the records of a control plane (key 1), a worker (key 2) whose name another machine waits for (key 5), a worker
// that has not joined yet, a worker that is being removed (key 4), and a machine that was removed (key 9).
func some() Records {
	return Records{
		Nodes: []Node{
			{Name: "dev-main-0", Pool: "main", Index: 0, PodCIDR: podCIDR(0), Address: addr(1), Key: testPin(1), JoinedAt: noon()},
			{Name: "dev-worker-0", Pool: "worker", Index: 1, PodCIDR: podCIDR(1), Address: addr(2), Key: testPin(2), JoinedAt: noon(), PendingKey: testPin(5), PendingAt: noon()},
			{Name: "dev-worker-1", Pool: "worker", Index: 2, PodCIDR: podCIDR(2)},
			{Name: "dev-worker-2", Pool: "worker", Index: 255, PodCIDR: podCIDR(255), Address: addr(4), Key: testPin(4), Removing: true},
		},
		Removed: []Removed{{Name: "dev-worker-3", Key: testPin(9), At: noon()}},
	}
}

func with(change func(*Token)) *Token {
	t := &Token{ID: "abcdefgh", Pool: "worker", Expires: noon().Add(time.Minute)}
	if change != nil {
		change(t)
	}
	return t
}

// Each request uses key n and address n, and the token's ID as evidence.
func TestDecide(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		key    int
		token  *Token
		change func(*Request)
		policy func(*Policy)

		refused Reason
		wait    string
		node    string
		index   int
		uses    bool
	}{
		"known":                              {key: 2, node: "dev-worker-0", index: 1},
		"known, claims its name":             {key: 2, change: func(r *Request) { r.ClaimedNode = "dev-worker-0" }, node: "dev-worker-0", index: 1},
		"known, token of others":             {key: 2, token: with(func(t *Token) { t.Key = testPin(7) }), node: "dev-worker-0", index: 1},
		"known, other name":                  {key: 2, change: func(r *Request) { r.ClaimedNode = "dev-worker-1" }, refused: NameOther},
		"known, moved":                       {key: 2, change: func(r *Request) { r.Address, r.Gone = addr(22), addr(2) }, node: "dev-worker-0", index: 1},
		"known, reachable elsewhere":         {key: 2, change: func(r *Request) { r.Address = addr(22) }, refused: KeyInUse},
		"known, another is unreachable":      {key: 2, change: func(r *Request) { r.Address, r.Gone = addr(22), addr(23) }, refused: KeyInUse},
		"reachable elsewhere, address taken": {key: 2, change: func(r *Request) { r.Address = addr(1) }, refused: AddressTaken},
		"control plane, unreachable, moved":  {key: 1, change: func(r *Request) { r.Address, r.Gone = addr(22), addr(1) }, refused: AddressMoved},
		"known control plane, moved":         {key: 1, change: func(r *Request) { r.Address = addr(22) }, refused: AddressMoved},
		"mapped address":                     {key: 1, change: func(r *Request) { r.Address = netip.AddrFrom16(addr(1).As16()) }, node: "dev-main-0"},
		"removing":                           {key: 4, refused: NodeRemoving},
		"removing, with a token":             {key: 4, token: with(nil), refused: NodeRemoving},
		"removed":                            {key: 9, refused: KeyRemoved},
		"removed, any token":                 {key: 9, token: with(nil), refused: KeyRemoved},
		"removed, its used token":            {key: 9, token: with(func(t *Token) { t.Key, t.UsedBy = testPin(9), testPin(9) }), refused: KeyRemoved},
		"removed, a new token for it":        {key: 9, token: with(func(t *Token) { t.Key = testPin(9) }), node: "dev-worker-4", index: 254, uses: true},
		"no key":                             {change: func(r *Request) { r.Key = "" }, token: with(nil), refused: BadKey},
		"malformed key":                      {change: func(r *Request) { r.Key = "sha256:\n" }, token: with(nil), refused: BadKey},
		"unknown key":                        {key: 6, refused: KeyUnknown},
		"replaces an unreachable worker":     {key: 6, change: at(2, 2), policy: byAddress, node: "dev-worker-0", index: 1},
		"replaces a reachable worker":        {key: 6, change: at(2, 0), policy: byAddress, refused: NodeAlive},
		"replaces, another is unreachable":   {key: 6, change: at(2, 3), policy: byAddress, refused: NodeAlive},
		"replaces, pool does not allow it":   {key: 6, change: at(2, 2), refused: KeyUnknown},
		"replaces a control plane":           {key: 6, change: at(1, 1), policy: byAddress, refused: KeyUnknown},
		"replaces one that is being removed": {key: 6, change: at(4, 4), policy: byAddress, refused: NodeRemoving},
		"replaces, key was removed":          {key: 9, change: at(2, 2), policy: byAddress, refused: KeyRemoved},
		"replaces, claims another name":      {key: 6, change: func(r *Request) { at(2, 2)(r); r.ClaimedNode = "dev-worker-1" }, policy: byAddress, refused: NameOther},
		"replaces, too new":                  {key: 6, change: func(r *Request) { at(2, 2)(r); r.Kubernetes = "1.37.0" }, policy: byAddress, refused: VersionNewer},
		"unknown key, unknown token":         {key: 6, change: func(r *Request) { r.Evidence.TokenID = "aaaaaaaa" }, refused: TokenUnknown},
		"unknown key, another token":         {key: 6, token: with(nil), change: func(r *Request) { r.Evidence.TokenID = "aaaaaaaa" }, refused: TokenUnknown},
		"token that was not proven":          {key: 6, token: with(nil), change: func(r *Request) { r.Evidence.TokenID = "" }, refused: KeyUnknown},
		"token":                              {key: 6, token: with(nil), node: "dev-worker-4", index: 254, uses: true},
		"token for its key":                  {key: 6, token: with(func(t *Token) { t.Key = testPin(6) }), node: "dev-worker-4", index: 254, uses: true},
		"token, used but not yet recorded":   {key: 6, token: with(func(t *Token) { t.UsedBy = testPin(6) }), node: "dev-worker-4", index: 254, uses: true},
		"token, used":                        {key: 6, token: with(func(t *Token) { t.UsedBy = testPin(7) }), refused: TokenUsed},
		"token, other key":                   {key: 6, token: with(func(t *Token) { t.Key = testPin(7) }), refused: TokenOtherKey},
		"token, expires now":                 {key: 6, token: with(func(t *Token) { t.Expires = noon() }), refused: TokenExpired},
		"token, used by itself, expired":     {key: 6, token: with(func(t *Token) { t.UsedBy, t.Expires = testPin(6), noon().Add(-1) }), refused: TokenExpired},
		"token, made by a fast clock":        {key: 6, token: with(func(t *Token) { t.Expires = noon().Add(MaxTTL + 6*time.Minute) }), refused: TokenClock},
		"token, small clock skew":            {key: 6, token: with(func(t *Token) { t.Expires = noon().Add(MaxTTL + 4*time.Minute) }), node: "dev-worker-4", index: 254, uses: true},
		"token, no such pool":                {key: 6, token: with(func(t *Token) { t.Pool = "gpu" }), refused: PoolUnknown},
		"token, no pool":                     {key: 6, token: with(func(t *Token) { t.Pool = "" }), refused: PoolUnknown},
		"token, control plane":               {key: 6, token: with(func(t *Token) { t.Pool = "main" }), node: "dev-main-1", index: 254, uses: true},
		"worker's token, control plane":      {key: 6, token: with(func(t *Token) { t.Node = "dev-main-0" }), refused: PoolOther},
		"worker's token, claims other name":  {key: 6, token: with(nil), change: func(r *Request) { r.ClaimedNode = "dev-main-1" }, refused: NameOther},
		"token for a name":                   {key: 6, token: with(func(t *Token) { t.Node = "edge" }), node: "edge", index: 254, uses: true},
		"token for a name, claims another":   {key: 6, token: with(func(t *Token) { t.Node = "edge" }), change: func(r *Request) { r.ClaimedNode = "dev-worker-1" }, refused: NameOther},
		"token for an invalid name":          {key: 6, token: with(func(t *Token) { t.Node = "../x" }), refused: NameInvalid},
		"token for kubernetes":               {key: 6, token: with(func(t *Token) { t.Node = "kubernetes" }), refused: NameInvalid},
		"token for localhost":                {key: 6, token: with(func(t *Token) { t.Node = "localhost" }), refused: NameInvalid},
		"token for a record without key":     {key: 6, token: with(func(t *Token) { t.Node = "dev-worker-1" }), node: "dev-worker-1", index: 2, uses: true},
		"token for one being removed":        {key: 6, token: with(func(t *Token) { t.Node = "dev-worker-2" }), refused: NodeRemoving},
		"token for one that was removed":     {key: 6, token: with(func(t *Token) { t.Node = "dev-worker-3" }), node: "dev-worker-3", index: 254, uses: true},
		"token for a name that is taken":     {key: 6, token: with(func(t *Token) { t.Node = "dev-main-0"; t.Pool = "main" }), change: func(r *Request) { r.Address = addr(1) }, wait: "dev-main-0", uses: true},
		"a third machine for the name":       {key: 6, token: with(func(t *Token) { t.Node = "dev-worker-0" }), refused: NameContested},
		"still waits":                        {key: 5, wait: "dev-worker-0"},
		"still waits, with its used token":   {key: 5, token: with(func(t *Token) { t.Node, t.UsedBy = "dev-worker-0", testPin(5) }), wait: "dev-worker-0"},
		"waits, gets another name":           {key: 5, token: with(nil), node: "dev-worker-4", index: 254, uses: true},
		"waits, from another's address":      {key: 5, change: func(r *Request) { r.Address = addr(1) }, refused: AddressTaken},
		"address of a node":                  {key: 6, token: with(nil), change: func(r *Request) { r.Address = addr(2) }, refused: AddressTaken},
		"address of a pod":                   {key: 6, token: with(nil), change: func(r *Request) { r.Address = netip.MustParseAddr("10.244.3.7") }, refused: AddressReserved},
		"address of a Service":               {key: 2, change: func(r *Request) { r.Address = netip.MustParseAddr("10.96.0.1") }, refused: AddressReserved},
		"worker, moves to the API's address": {key: 2, change: func(r *Request) { r.Address, r.Gone = addr(77), addr(2) }, policy: reserve(77), refused: AddressReserved},
		"worker, is at the API's address":    {key: 2, policy: reserve(2), node: "dev-worker-0", index: 1},
		"new worker at the API's address":    {key: 6, token: with(nil), policy: reserve(6), refused: AddressReserved},
		"control plane at the API's address": {key: 6, token: with(func(t *Token) { t.Pool = "main" }), policy: reserve(6), node: "dev-main-1", index: 254, uses: true},
		"no address":                         {key: 2, change: func(r *Request) { r.Address = netip.Addr{} }, refused: AddressInvalid},
		"address 0.0.0.0":                    {key: 2, change: func(r *Request) { r.Address = netip.IPv4Unspecified() }, refused: AddressInvalid},
		"multicast address":                  {key: 2, change: func(r *Request) { r.Address = netip.MustParseAddr("224.0.0.1") }, refused: AddressInvalid},
		"newer minor":                        {key: 2, change: func(r *Request) { r.Kubernetes = "1.37.0" }, refused: VersionNewer},
		"newer patch":                        {key: 6, token: with(nil), change: func(r *Request) { r.Kubernetes = "v1.36.5" }, refused: VersionNewer},
		"too old":                            {key: 2, change: func(r *Request) { r.Kubernetes = "1.32.9" }, refused: VersionOlder},
		"old":                                {key: 2, change: func(r *Request) { r.Kubernetes = "1.33.0" }, node: "dev-worker-0", index: 1},
		"no version":                         {key: 2, change: func(r *Request) { r.Kubernetes = "1.36" }, refused: VersionBad},
		"unknown server version":             {key: 2, change: func(r *Request) { r.Kubernetes = "1.36.4" }, policy: func(p *Policy) { p.APIServer = "" }, refused: VersionBad},
		"no free pod CIDR":                   {key: 6, token: with(nil), policy: func(p *Policy) { p.PodCIDR = netip.MustParsePrefix("10.244.0.0/24") }, refused: PodCIDRsExhausted},
		"no pod CIDR":                        {key: 6, token: with(nil), policy: func(p *Policy) { p.PodCIDR = netip.Prefix{} }, refused: PodCIDRsExhausted},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, p := Request{Key: testPin(tt.key), Address: addr(tt.key)}, rules()
			if tt.token != nil {
				req.Evidence.TokenID = tt.token.ID
			}
			if tt.change != nil {
				tt.change(&req)
			}
			if tt.policy != nil {
				tt.policy(&p)
			}
			before := some()
			v := Decide(req, before, tt.token, p, noon())
			if diff := cmp.Diff(some(), before, equal()); diff != "" {
				t.Errorf("Decide has changed the records (-want +got):\n%s", diff)
			}
			if got := reasonOf(v); got != tt.refused {
				t.Fatalf("got refusal %q, want %q: %v", got, tt.refused, v.Refusal)
			}
			if tt.refused != "" {
				want := Node{}
				if tt.refused == KeyInUse { // only the second address is stored
					want = some().Nodes[1]
					want.Elsewhere, want.ElsewhereAt = req.Address, noon()
				}
				if v.Node != want || v.UseToken || v.Wait != nil {
					t.Errorf("refused: got %+v, want only the refusal", v)
				}
				return
			}
			if v.UseToken != tt.uses {
				t.Errorf("got UseToken %v, want %v", v.UseToken, tt.uses)
			}
			if tt.wait != "" {
				if v.Wait == nil || v.Wait.Who != "slipway node approve "+tt.wait || v.Node.Key == req.Key || v.Node.PendingKey != req.Key {
					t.Errorf("got wait %v with %+v, want to wait for the name %s", v.Wait, v.Node, tt.wait)
				}
				return
			}
			if v.Wait != nil || v.Node.Name != tt.node || v.Node.Index != tt.index || v.Node.PodCIDR != podCIDR(tt.index) || v.Node.Key != req.Key || v.Node.Address != req.Address.Unmap() {
				t.Errorf("got %+v (wait %v), want node %s with pod CIDR %d", v.Node, v.Wait, tt.node, tt.index)
			}
			if _, err := before.Put(v.Node); err != nil {
				t.Errorf("the decision cannot be stored: %v", err)
			}
		})
	}
}

func reasonOf(v Verdict) Reason {
	if v.Refusal == nil {
		return ""
	}
	return v.Refusal.Reason
}

func equal() cmp.Option {
	return cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}
}

// The admission of a known machine updates its address, facts and version, and nothing else.
func TestAdmittedRecord(t *testing.T) {
	t.Parallel()
	later := noon().Add(time.Hour)
	req := Request{Key: testPin(2), Address: addr(22), Gone: addr(2), Facts: machine.Facts{CgroupV1: true}}
	v := Decide(req, some(), nil, rules(), later)
	want := some().Nodes[1]
	want.Address, want.Facts, want.Kubernetes = addr(22), machine.Facts{CgroupV1: true}, "1.36.4"
	if diff := cmp.Diff(want, v.Node, equal()); diff != "" {
		t.Error(diff)
	}
	r, err := some().Put(v.Node)
	if err != nil {
		t.Fatal(err)
	}
	if again := Decide(req, r, nil, rules(), later.Add(time.Hour)); again.Node != v.Node {
		t.Errorf("a second request changes the record to %+v", again.Node)
	}
	fresh := Decide(Request{Key: testPin(6), Address: addr(6), Kubernetes: "1.35.1", Evidence: Evidence{"abcdefgh"}}, r, with(func(t *Token) { t.Expires = later.Add(1) }), rules(), later)
	if fresh.Node.JoinedAt != later || fresh.Node.Kubernetes != "1.35.1" {
		t.Errorf("a new record: got %+v, %v", fresh.Node, fresh.Refusal)
	}
}

// A key is used from two addresses: the first second address is recorded and can be approved; the known machine stays admitted.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	r, now := some(), noon()
	ask := func(n int) Verdict {
		v := Decide(Request{Key: testPin(2), Address: addr(n)}, r, nil, rules(), now)
		if v.Node.Name != "" {
			r = r.with(v.Node)
		}
		return v
	}
	if v := ask(22); reasonOf(v) != KeyInUse || !strings.Contains(v.Refusal.Text, "slipway node approve dev-worker-0") {
		t.Fatalf("got %+v, want a refusal that names the command", v)
	}
	first, _ := r.Node("dev-worker-0")
	now = now.Add(MaxTTL / 4)
	for _, n := range []int{22, 23} {
		if v := ask(n); reasonOf(v) != KeyInUse || v.Node != (Node{}) {
			t.Errorf("asks again from %d: got %+v, want a refusal without a record", n, v)
		}
	}
	if v := ask(2); v.Refusal != nil || v.Node.Elsewhere != addr(22) || v.Node.Address != addr(2) {
		t.Errorf("the known machine: got %+v", v)
	}
	if now = now.Add(MaxTTL / 4); ask(22).Node.ElsewhereAt != now {
		t.Error("the time of a repeated request is not updated")
	}
	if n, _ := r.Node("dev-worker-0"); !n.AsksElsewhere(now) || n.AsksElsewhere(now.Add(MaxTTL)) || n.Address != first.Address {
		t.Errorf("got %+v, want a second address that expires after %s", n, MaxTTL)
	}
	if now = now.Add(MaxTTL); ask(23).Node.Elsewhere != addr(23) {
		t.Error("a second address that stopped asking is not replaced")
	}
	r.Nodes[1].PendingKey = ""
	out, n, err := r.Approve("dev-worker-0", now)
	if err != nil || n.Key != testPin(2) || n.Address != addr(23) || n.Elsewhere.IsValid() || len(out.Removed) != len(r.Removed) {
		t.Fatalf("approved: got %+v, %v", n, err)
	}
	r = out
	if v := ask(23); v.Refusal != nil {
		t.Errorf("the approved machine is refused: %v", v.Refusal)
	}
	if v := ask(2); reasonOf(v) != KeyInUse {
		t.Errorf("the other machine: got %+v, want %s", v, KeyInUse)
	}
}

// Before the first join there is no machine that could have a copied disk, so any address is admitted.
func TestElsewhereBeforeTheFirstJoin(t *testing.T) {
	t.Parallel()
	r := some()
	r.Nodes[1].JoinedAt = time.Time{}
	if v := Decide(Request{Key: testPin(2), Address: addr(22)}, r, nil, rules(), noon()); v.Refusal != nil || v.Node.Address != addr(22) {
		t.Errorf("got %+v, want an admission", v)
	}
}

// A pending key that was not approved for 15 minutes does not block another machine.
func TestPendingGivesWay(t *testing.T) {
	t.Parallel()
	later := noon().Add(MaxTTL)
	token := with(func(t *Token) { t.Node, t.Expires = "dev-worker-0", later.Add(time.Second) })
	v := Decide(Request{Key: testPin(6), Address: addr(6), Evidence: Evidence{token.ID}}, some(), token, rules(), later)
	if v.Wait == nil || v.Wait.Since != later || v.Node.PendingKey != testPin(6) || v.Node.Key != testPin(2) {
		t.Errorf("got wait %v with %+v, refusal %v", v.Wait, v.Node, v.Refusal)
	}
}

func TestVersionRefusalNamesBoth(t *testing.T) {
	t.Parallel()
	for machine, reason := range map[string]Reason{"1.37.0": VersionNewer, "1.30.2": VersionOlder, "2.0.0": VersionNewer, "0.99.0": VersionOlder} {
		refusal := checkVersion(machine, "1.36.4")
		if refusal == nil || refusal.Reason != reason || !strings.Contains(refusal.Text, machine) || !strings.Contains(refusal.Text, "1.36.4") {
			t.Errorf("%s: got %v, want %s", machine, refusal, reason)
		}
	}
}

// Text from a machine is quoted and shortened before it reaches the audit log.
func TestRefusalQuotesInput(t *testing.T) {
	t.Parallel()
	evil := "x\n\x1b[2Jadmitted"
	for _, req := range []Request{
		{Key: pin.Pin(evil)},
		{Key: testPin(2), Address: addr(2), ClaimedNode: evil},
		{Key: testPin(2), Address: addr(2), Kubernetes: evil},
		{Key: testPin(6), Address: addr(6), Evidence: Evidence{evil}},
		{Key: testPin(2), Address: netip.MustParseAddr("fe80::1%" + evil)},
	} {
		v := Decide(req, some(), nil, rules(), noon())
		if v.Refusal == nil || strings.ContainsAny(v.Refusal.Text, "\n\x1b") || len(v.Refusal.Text) > 400 {
			t.Errorf("%+v: got %v, want a refusal with quoted input", req, v.Refusal)
		}
	}
}

func TestToken(t *testing.T) {
	t.Parallel()
	var random [TokenRandom]byte
	for i := range random {
		random[i] = byte(i * 37)
	}
	id, text := TokenText(random)
	got, hash, err := ReadToken(text)
	if err != nil || got != id || len(hash) != 64 || strings.Contains(text, hash) {
		t.Errorf("read token %s with ID %s: got %s, %s, %v", text, id, got, hash, err)
	}
	if other, _ := TokenText([TokenRandom]byte{}); other == id {
		t.Error("the ID does not depend on the random bytes")
	}
	for _, bad := range []string{
		"", text + "x", text[:len(text)-1], strings.ToUpper(text), " " + text, text + "\n", "slipway." + id, strings.Replace(text, ".", "..", 1), strings.Replace(text, "slipway", "kubeadm", 1),
	} {
		if _, _, err := ReadToken(bad); err == nil || strings.Contains(err.Error(), text[20:30]) {
			t.Errorf("%q: got %v, want an error without the text", bad, err)
		}
	}
}

// The table in README.md lists exactly the constants and their comments.
func TestReasonsAreInTheTable(t *testing.T) {
	t.Parallel()
	code, err := os.ReadFile("verdict.go")
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	reasons := regexp.MustCompile(`(?m)^\t\w+ +Reason = "([a-z-]+)" +// (.+)$`).FindAllStringSubmatch(string(code), -1)
	if rows := strings.Count(string(table), "\n| `"); len(reasons) < 20 || rows != len(reasons) {
		t.Errorf("got %d rows in README.md, want %d, one for each constant", rows, len(reasons))
	}
	for _, r := range reasons {
		if row := "| `" + r[1] + "` | " + r[2] + " |\n"; !strings.Contains(string(table), row) {
			t.Errorf("README.md: want the row %s", row)
		}
	}
}
