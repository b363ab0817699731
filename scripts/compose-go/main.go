// Loads a compose file by the library that Docker's own `compose` is made of, checks it against the
// specification's schema, fills in the variables, and prints what it comes to, with the services of
// all profiles.
//
//	compose-go compose.yaml
package main

import (
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/cli"
)

func main() {
	if len(os.Args) != 2 {
		fail(fmt.Errorf("usage: compose-go FILE"))
	}
	options, err := cli.NewProjectOptions(os.Args[1:], cli.WithOsEnv, cli.WithDefaultProfiles("*"))
	if err != nil {
		fail(err)
	}
	project, err := cli.ProjectFromOptions(options)
	if err != nil {
		fail(err)
	}
	text, err := project.MarshalYAML()
	if err != nil {
		fail(err)
	}
	fmt.Printf("%s", text)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
