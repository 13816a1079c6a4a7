package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

var update = flag.Bool("update", false, "write the schema anew")

const schemaFile = "../../deploy/shapeproxy.schema.json"

// The schema that is handed out is the one of this code.
func TestSchemaFile(t *testing.T) {
	if *update {
		if err := os.WriteFile(schemaFile, Schema(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, Schema()) {
		t.Errorf("%s is not what the code takes; run: go test ./internal/config -run Schema -update", schemaFile)
	}
}

func valid(t *testing.T, text string) error {
	t.Helper()
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("shapeproxy.json", schema); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("shapeproxy.json")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if _, err := toml.Decode(text, &values); err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	back, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	if err != nil {
		t.Fatal(err)
	}
	return compiled.Validate(back)
}

// What loads is valid, the example with everything in it first of all.
func TestSchemaTakesWhatLoads(t *testing.T) {
	files := []string{"../../config.example.toml"}
	good, err := os.ReadDir("testdata/good")
	if err != nil || len(good) == 0 {
		t.Fatal(err)
	}
	for _, f := range good {
		if regexp.MustCompile(`\.toml$`).MatchString(f.Name()) {
			files = append(files, "testdata/good/"+f.Name())
		}
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := valid(t, string(text)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	// The example has in comments what is not the default.
	text, err := os.ReadFile("../../config.example.toml")
	if err != nil {
		t.Fatal(err)
	}
	fields := regexp.MustCompile(`(?m)^# ?([a-z_0-9]+) = `).FindAllSubmatch(text, -1)
	for _, f := range fields {
		if !bytes.Contains(Schema(), []byte(`"`+string(f[1])+`": {`)) {
			t.Errorf("the schema lacks %s", f[1])
		}
	}
}

func TestSchemaRefuses(t *testing.T) {
	for _, text := range []string{
		"[limit.a]\nalgorithm = \"leaky-buket\"",
		"[limit.a]\nqueue = \"ten\"",
		"[limit.a]\nqeue = 10",
		"[server]\nlisten = 8080",
		"[[route]]\nmatch = \"/\"\nlimit = [\"a\"]",
		"[upstream.u]\nset_headers = { A = 1 }",
		"[serer]",
	} {
		if valid(t, text) == nil {
			t.Errorf("the schema takes\n%s", text)
		}
	}
}
