// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/outputdir"
	"github.com/slipway-project/slipway/internal/render"
	"github.com/slipway-project/slipway/internal/report"
)

// renderCommand returns nil if this program has no forms.
func renderCommand(e Env) *cobra.Command {
	if len(e.Forms) == 0 {
		return nil
	}
	var source clusterdir.Source
	var node, to string
	var out format
	form := formFlag{forms: e.Forms}
	cmd := &cobra.Command{
		Use:   "render",
		Short: "Write a node's plan as files for another program",
		Long: `Write the plan of a node as files for another program. Render lists the items that the format cannot express, with the
reason and what has to provide them instead. It writes only to the given directory, which must be empty or written by
an earlier render.

Formats:
` + form.list(),
		Example: `  slipway render --format ` + form.first() + ` -f cluster.yaml --to out
  slipway render --format ` + form.first() + ` --node dev-main-0 --to - | less
  slipway render --format ` + form.first() + ` --output json` + form.examples(),
		Args: noArgs,
	}
	specFlags(e, cmd, &source)
	cmd.Flags().Var(&form, "format", "output format (required): "+strings.Join(form.names(), ", "))
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(form.names(), cobra.ShellCompDirectiveNoFileComp))
	nodeFlag(e, cmd, &node, &source.Name)
	cmd.Flags().StringVar(&to, "to", "-", "directory to write to, or - to print")
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if form.chosen == nil {
			return usageError{errors.New("--format is required: use one of " + strings.Join(form.names(), ", "))}
		}
		if to == "" {
			return usageError{errors.New("--to is empty: name a directory, or - to print")}
		}
		p, err := bootstrap.PlanNode(cmd.Context(), *e.Inventory, source, node)
		if err != nil {
			return err
		}
		r, err := form.chosen.Render(cmd.Context(), *e.Inventory, p)
		if err != nil {
			return fmt.Errorf("render %s for %s: %w", form.chosen.Name, p.Plan.Node, err)
		}
		if to != "-" {
			if err := outputdir.Write(to, r.Files); err != nil {
				return err
			}
		}
		return showRendered(e, out, form.chosen.Name, to, p, r)
	}
	return cmd
}

// showRendered prints the files, or a summary if they were written to a directory, and the omitted items.
func showRendered(e Env, out format, form, to string, p bootstrap.PlannedNode, r render.Rendered) error {
	if out != asText {
		return out.object(e.Out, "Rendered", renderedView(form, to, p, r))
	}
	for _, a := range p.Assumed {
		fmt.Fprintln(e.Err, "note: "+a)
	}
	if to == "-" {
		printFiles(e.Out, r.Files)
	} else {
		fmt.Fprintf(e.Out, "wrote %s for node %s to %s\n", report.Count(len(r.Files), "file"), p.Plan.Node, to)
	}
	if len(r.Omitted) == 0 {
		return nil
	}
	fmt.Fprintf(e.Err, "omitted, because %s cannot express them:\n", form)
	for _, group := range byReason(r.Omitted) {
		fmt.Fprintln(e.Err, wrap("  ", group.refs))
		fmt.Fprintln(e.Err, "      "+group.reason)
	}
	return nil
}

// printFiles prints a single file as it is, and several files with their names as headings.
func printFiles(w io.Writer, files []render.File) {
	for _, f := range files {
		if len(files) > 1 {
			fmt.Fprintf(w, "-- %s --\n", f.Path)
		}
		_, _ = w.Write(f.Content) // checkedWriter records the error
		if len(files) > 1 && len(f.Content) > 0 && f.Content[len(f.Content)-1] != '\n' {
			fmt.Fprintln(w)
		}
	}
}

// omittedGroup has the items that are omitted for the same reason.
type omittedGroup struct {
	reason string
	refs   []string
}

func byReason(omitted []render.Omitted) []omittedGroup {
	var out []omittedGroup
	at := map[string]int{}
	for _, l := range omitted {
		i, ok := at[l.Reason]
		if !ok {
			i = len(out)
			at[l.Reason] = i
			out = append(out, omittedGroup{reason: l.Reason})
		}
		out[i].refs = append(out[i].refs, l.Ref.String())
	}
	return out
}

type fileView struct {
	Path    string   `json:"path"`
	Mode    string   `json:"mode"`
	Content string   `json:"content,omitempty"` // text; absent when the files were written to a directory
	Base64  []byte   `json:"base64,omitempty"`  // content that is not text
	Refs    []string `json:"refs,omitempty"`
}

type omittedView struct {
	Ref    string `json:"ref"`
	Reason string `json:"reason"`
}

func renderedView(form, to string, p bootstrap.PlannedNode, r render.Rendered) map[string]any {
	files, omitted := []fileView{}, []omittedView{}
	for _, f := range r.Files {
		v := fileView{Path: f.Path, Mode: fmt.Sprintf("%04o", f.Mode), Refs: refs(f.Refs)}
		switch {
		case to != "-":
		case utf8.Valid(f.Content):
			v.Content = string(f.Content)
		default:
			v.Base64 = f.Content
		}
		files = append(files, v)
	}
	for _, l := range r.Omitted {
		omitted = append(omitted, omittedView{l.Ref.String(), l.Reason})
	}
	return map[string]any{
		"cluster": p.Plan.Cluster, "node": p.Plan.Node, "format": form, "to": to, "files": files, "omitted": omitted, "assumed": append([]string{}, p.Assumed...),
	}
}

// formFlag is the value of --format.
type formFlag struct {
	forms  []bootstrap.Form
	chosen *bootstrap.Form
}

func (f *formFlag) String() string {
	if f.chosen == nil {
		return ""
	}
	return f.chosen.Name
}

func (f *formFlag) Type() string { return "format" }

// Set accepts the name of one of the forms.
func (f *formFlag) Set(s string) error {
	for i := range f.forms {
		if f.forms[i].Name == s {
			f.chosen = &f.forms[i]
			return nil
		}
	}
	return errors.New("use one of " + strings.Join(f.names(), ", "))
}

func (f *formFlag) names() []string {
	var out []string
	for _, x := range f.forms {
		out = append(out, x.Name)
	}
	return out
}

func (f *formFlag) first() string { return append(f.names(), "")[0] }

// examples returns the examples of the forms, for the help.
func (f *formFlag) examples() string {
	var b strings.Builder
	for _, x := range f.forms {
		if x.Example != "" {
			fmt.Fprintf(&b, "\n  slipway render --format %s %s", x.Name, x.Example)
		}
	}
	return b.String()
}

func (f *formFlag) list() string {
	var b strings.Builder
	for _, x := range f.forms {
		fmt.Fprintf(&b, "  %-12s  %s\n", x.Name, x.Summary)
	}
	return strings.TrimSuffix(b.String(), "\n")
}
