// SPDX-License-Identifier: Apache-2.0

// Command grafana-schema says whether files are dashboards as Grafana's own schema has them: each field known, of its
// type, within its bounds, those of the panels' and queries' kinds included.
//
//	grafana-schema FILE...
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func check(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var found dashboard.Dashboard
	if err := some(found.UnmarshalJSONStrict(content)); err != nil {
		return err
	}
	return some(found.Validate())
}

// What the schema's code returns when nothing is wrong is an empty list, which is not nil.
func some(err error) error {
	var list cog.BuildErrors
	if errors.As(err, &list) && len(list) == 0 {
		return nil
	}
	return err
}

func main() {
	plugins.RegisterDefaultPlugins()
	status := 0
	for _, path := range os.Args[1:] {
		if err := check(path); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
			status = 1
		}
	}
	os.Exit(status)
}
