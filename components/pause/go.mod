module github.com/slipway-project/slipway/components/pause

go 1.26.0
