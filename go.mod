module github.com/slipway-project/slipway

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0 // indirect
	go.yaml.in/yaml/v2 v2.4.2 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/tools v0.38.0 // indirect
	sigs.k8s.io/yaml v1.6.0 // indirect
)
