module github.com/slipway-project/slipway

go 1.26.0
