# B1-1: a crash while a failed init is undone: it is undone completely, and never restarted.
machines 1
fail n1 unit/kube-apiserver
init n1
crash n1 at "wipe"
wait 16m
start n1
repair n1
wait 1m
expect init request-n1 "failed"
expect free n1
init n1 as request-two
wait 10s
expect init request-two committed
expect nodes 1
