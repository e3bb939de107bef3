// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"slices"

	"github.com/slipway-project/slipway/internal/core/spec"
)

func (p *printer) os(c Cluster) {
	origin := func(field string) Origin { return c.Origins["os."+field] }
	values := c.OS.values()
	p.raw(1, "os:")
	p.value(2, "modules", values["modules"], origin("modules"))
	sysctls := make(map[string]any, len(c.OS.Sysctls))
	for name := range c.OS.Sysctls {
		sysctls[name] = values[spec.Child("sysctls", name)]
	}
	p.raw(2, "sysctls:")
	for _, name := range slices.Sorted(maps.Keys(sysctls)) {
		p.value(3, name, sysctls[name], c.OS.Sysctls[name].Origin)
	}
	p.tree(2, "packages", values["packages"], origin("packages"), nil)
	p.rows(2, "groups", rowTexts(c.OS.groupRows()), origin("groups"))
	p.rows(2, "users", rowTexts(c.OS.userRows()), origin("users"))
	p.rows(2, "folders", rowTexts(c.OS.folderRows()), origin("folders"))
	p.tree(2, "limits", values["limits"], origin("limits"), nil)
	for _, field := range []string{"timeSync", "swap", "hostname"} {
		p.value(2, field, values[field], origin(field))
	}
	p.rows(1, "hooks", rowTexts(c.hookRows()), c.Origins["hooks"])
}

// values are the fields by path below spec.os.
func (o OS) values() map[string]any {
	packages, limits := make(map[string]any, len(o.Packages)), make(map[string]any, len(o.Limits))
	for manager, names := range o.Packages {
		packages[manager] = normal(names)
	}
	for name, limit := range o.Limits {
		limits[name] = limit
	}
	out := map[string]any{
		"modules": normal(o.ModuleNames()), "packages": packages, "limits": limits, "timeSync": o.TimeSync, "swap": o.Swap, "hostname": o.Hostname,
		"groups": anyRows(o.groupRows()), "users": anyRows(o.userRows()), "folders": anyRows(o.folderRows()),
	}
	for name, s := range o.Sysctls {
		out[spec.Child("sysctls", name)] = any(s.Value)
		if s.Unset {
			out[spec.Child("sysctls", name)] = nil
		}
	}
	return out
}

// row is a small object of a list, written on one line.
type row map[string]any

func (r row) text(key, value string) row {
	if value != "" {
		r[key] = value
	}
	return r
}

func (r row) list(key string, values []string) row {
	if len(values) > 0 {
		r[key] = normal(values)
	}
	return r
}

func rowTexts(rows []row) []string {
	var out []string
	for _, r := range rows {
		out = append(out, flow(map[string]any(r), true))
	}
	return out
}

func anyRows(rows []row) []any {
	out := make([]any, 0, len(rows))
	for _, r := range rows {
		out = append(out, map[string]any(r))
	}
	return out
}

func (o OS) groupRows() []row {
	var rows []row
	for _, g := range o.Groups {
		r := row{"name": g.Name}
		if g.GID != nil {
			r["gid"] = *g.GID
		}
		rows = append(rows, r)
	}
	return rows
}

func (o OS) userRows() []row {
	var rows []row
	for _, u := range o.Users {
		r := row{"name": u.Name, "shell": u.Shell}
		if u.UID != nil {
			r["uid"] = *u.UID
		}
		r.text("group", u.Group).text("home", u.Home).list("groups", u.Groups)
		rows = append(rows, r)
	}
	return rows
}

func (o OS) folderRows() []row {
	var rows []row
	for _, f := range o.Folders {
		r := row{"path": f.Path, "mode": fmt.Sprintf("%04o", f.Mode)}
		r.text("owner", f.Owner).text("group", f.Group)
		rows = append(rows, r)
	}
	return rows
}

func (c Cluster) hookRows() []row {
	var rows []row
	for _, h := range c.Hooks {
		r := row{"name": h.Name, "command": normal(h.Command), "timeout": h.Timeout.String()}
		r.text("before", h.Before).text("after", h.After).list("roles", h.Roles)
		if h.EveryBoot {
			r["everyBoot"] = true
		}
		rows = append(rows, r)
	}
	return rows
}
