// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
)

// reach says of every machine that is listed how an operator reaches it.
func (k *checker) reach(in v1alpha1.Cluster) {
	all := k.ssh("spec.ssh", in.Spec.SSH)
	for i, p := range in.Spec.Pools {
		for j, m := range p.Machines {
			own := k.ssh(Element(Element("spec.pools", i)+".machines", j)+".ssh", m.SSH)
			k.out.Pools[i].Machines[j].SSH = own.or(all)
		}
	}
}

// or is s, and other's where s says nothing.
func (s SSH) or(other SSH) SSH {
	return SSH{
		User: cmp.Or(s.User, other.User), Port: cmp.Or(s.Port, other.Port), IdentityFile: cmp.Or(s.IdentityFile, other.IdentityFile),
		Jump: cmp.Or(s.Jump, other.Jump), HostKey: cmp.Or(s.HostKey, other.HostKey),
	}
}

func (k *checker) ssh(at string, in v1alpha1.SSH) SSH {
	out := SSH{User: in.User, IdentityFile: in.IdentityFile, HostKey: in.HostKey}
	if k.out.Said(at+".user") && !isUser(in.User) {
		k.say(at+".user", "write a user such as root", "%s is no user name", show(in.User))
	}
	if in.Port != nil {
		out.Port = *in.Port
		if out.Port < 1 || out.Port > 65535 {
			k.say(at+".port", "choose 1 to 65535", "%d is no port", out.Port)
		}
	}
	if k.out.Said(at+".identityFile") && (in.IdentityFile == "" || !strings.HasPrefix(in.IdentityFile, "/") && !strings.HasPrefix(in.IdentityFile, "~/")) {
		k.say(at+".identityFile", "write a path that begins with / or ~/", "%s is no path that means the same in every folder", show(in.IdentityFile))
	}
	if k.out.Said(at + ".jump") {
		var ok bool
		if out.Jump, ok = parseJump(in.Jump); !ok {
			k.say(at+".jump", "write USER@HOST:PORT, HOST:PORT, USER@HOST or HOST", "%s is no host to go through", show(in.Jump))
		}
	}
	if k.out.Said(at+".hostKey") && !isHostKey(in.HostKey) {
		k.say(at+".hostKey", `write "TYPE BASE64" as in a .pub file, or SHA256:… as ssh-keygen -lf prints it`, "%s is no public key and no fingerprint", show(in.HostKey))
	}
	return out
}

// parseJump reads USER@HOST:PORT; user and port may be left away.
func parseJump(text string) (Jump, bool) {
	j := Jump{Host: text}
	if user, rest, ok := strings.Cut(text, "@"); ok {
		j.User, j.Host = user, rest
		if !isUser(user) {
			return Jump{}, false
		}
	}
	if host, port, ok := strings.Cut(j.Host, ":"); ok {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return Jump{}, false
		}
		j.Host, j.Port = host, int(n)
	}
	return j, isDomain(strings.ToLower(j.Host))
}

// isUser: what the tools of Linux let a user be called.
func isUser(s string) bool {
	const longest = 32
	return len(s) <= longest && only(s, func(r rune) bool { return letter(r) || digit(r) || r == '-' || r == '_' || r == '.' }) && s[0] != '-'
}

const fingerprint = "SHA256:"

// isHostKey looks at the form only.
func isHostKey(s string) bool {
	if hash, ok := strings.CutPrefix(s, fingerprint); ok {
		raw, err := base64.RawStdEncoding.DecodeString(hash)
		return err == nil && len(raw) == 32
	}
	f := strings.Fields(s)
	if len(f) < 2 || !strings.HasPrefix(f[0], "ssh-") && !strings.HasPrefix(f[0], "ecdsa-") && !strings.HasPrefix(f[0], "sk-") {
		return false
	}
	raw, err := base64.StdEncoding.DecodeString(f[1])
	return err == nil && len(raw) > 4+len(f[0]) && string(raw[4:4+len(f[0])]) == f[0]
}
