module github.com/slipway-project/slipway/components/testpod

go 1.26.0
