// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
)

const (
	accountHint = "lower-case letters, digits, dashes and underscores, a letter or underscore first, at most 32"
	maxID       = 1<<31 - 2
)

// accounts checks groups and users: two of one name or number would be one.
func (k *checker) accounts(in v1alpha1.OS) {
	names, numbers := map[string]string{}, map[int]string{}
	for i, g := range in.Groups {
		at := Element("spec.os.groups", i)
		k.account(at, g.Name, names)
		k.number(at+".gid", g.GID, at, numbers)
		k.out.OS.Groups = append(k.out.OS.Groups, Group(g))
	}
	names, numbers = map[string]string{}, map[int]string{}
	for i, u := range in.Users {
		at := Element("spec.os.users", i)
		k.account(at, u.Name, names)
		k.number(at+".uid", u.UID, at, numbers)
		if k.out.Said(at + ".group") {
			k.accountName(at+".group", u.Group)
		}
		for n, g := range u.Groups {
			k.accountName(Element(at+".groups", n), g)
		}
		for _, x := range []struct{ field, value string }{{"home", u.Home}, {"shell", u.Shell}} {
			if k.out.Said(at + "." + x.field) {
				k.absolute(at+"."+x.field, x.value)
			}
		}
		k.out.OS.Users = append(k.out.OS.Users, User(u))
	}
}

func (k *checker) account(at, name string, seen map[string]string) {
	if !k.out.Said(at + ".name") {
		k.missing(at, "name", "")
		return
	}
	k.accountName(at+".name", name)
	if name == "root" {
		k.say(at+".name", "choose another", "root is there, and slipway leaves it as it is")
	}
	unique(k, at+".name", name, at, seen)
}

func (k *checker) accountName(at, name string) {
	if !isAccount(name) {
		k.say(at, accountHint, "%s is not the name of a user or group", show(name))
	}
}

func (k *checker) number(at string, n *int, owner string, seen map[int]string) {
	if n == nil {
		return
	}
	if *n < 1 || *n > maxID {
		k.say(at, "choose 1 to "+strconv.Itoa(maxID), "%d is no number of a user or group", *n)
	}
	unique(k, at, *n, owner, seen)
}

// absolute checks a path that ends up in plans, files and command lines.
func (k *checker) absolute(at, p string) bool {
	k.line(at, p)
	switch {
	case !strings.HasPrefix(p, "/") || path.Clean(p) != p:
		k.say(at, "write it from the root on, without dots and double slashes", "%s is not a whole path", show(p))
	case strings.ContainsAny(p, "$:\"'\\"):
		k.say(at, "use other characters", "%s holds characters that shells and files of accounts read otherwise", show(p))
	default:
		return true
	}
	return false
}

func (k *checker) folders(list string, in []v1alpha1.Folder) {
	seen := map[string]string{}
	for i, f := range in {
		at := Element(list, i)
		out := Folder{Path: f.Path, Mode: DefaultFolderMode, Owner: f.Owner, Group: f.Group}
		k.ownPath(at, f.Path, takenFolder, "choose another folder", seen)
		if k.out.Said(at + ".mode") {
			out.Mode = k.mode(at+".mode", f.Mode, "0750", "a folder")
		}
		for _, x := range []struct{ field, value string }{{"owner", f.Owner}, {"group", f.Group}} {
			if k.out.Said(at + "." + x.field) {
				k.accountName(at+"."+x.field, x.value)
			}
		}
		k.out.OS.Folders = append(k.out.OS.Folders, out)
	}
}

// ownPath checks where something of the user's is to lie: a whole path, there once, and nobody else's. Taken tells whose it is.
func (k *checker) ownPath(at, p string, taken func(string) string, hint string, seen map[string]string) {
	if !k.out.Said(at + ".path") {
		k.missing(at, "path", "")
		return
	}
	if !k.absolute(at+".path", p) {
		return
	}
	if why := taken(p); why != "" {
		k.say(at+".path", hint, "%s %s", p, why)
	}
	unique(k, at+".path", p, at, seen)
}

func (k *checker) mode(at, text, example, what string) uint32 {
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > 0o777 || len(text) < 3 {
		k.say(at, "write octal digits such as "+example, "%s is no mode of %s", show(text), what)
	}
	return uint32(n)
}

// takenFolder tells why a folder is nobody's to change by a spec: Slipway's own, or the system's.
func takenFolder(p string) string {
	for _, own := range []string{
		"/etc/kubernetes", "/etc/containerd", "/etc/cni", "/opt/slipway", "/opt/cni", "/run/slipway", "/run/containerd", "/var/lib/slipway",
		"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/etcd", "/var/lib/cni", "/var/log/kubernetes", "/var/log/slipway",
	} {
		if p == own || strings.HasPrefix(p, own+"/") {
			return "belongs to slipway"
		}
	}
	for _, kernel := range []string{"/proc", "/sys", "/dev"} {
		if p == kernel || strings.HasPrefix(p, kernel+"/") {
			return "belongs to the kernel"
		}
	}
	system := strings.Fields("/ /bin /boot /etc /home /lib /lib64 /media /mnt /opt /root /run /sbin /srv /tmp /usr /var /usr/bin /usr/lib /usr/local /usr/sbin" +
		" /usr/share /usr/local/bin /var/cache /var/lib /var/log /var/run /var/spool /var/tmp /etc/systemd /etc/sysctl.d /etc/security")
	if slices.Contains(system, p) {
		return "belongs to the distribution"
	}
	return ""
}

func isAccount(s string) bool {
	const longest = 32
	return len(s) <= longest && only(s, func(r rune) bool { return lower(r) || digit(r) || r == '-' || r == '_' }) && !digit(rune(s[0])) && s[0] != '-'
}
