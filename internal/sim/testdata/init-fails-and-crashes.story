# B1-1: a crash in the middle of undoing an init: it is undone to the end, and never begun anew.
machines 1
fail n1 unit/kube-apiserver
init n1
crash n1 at "wipe"
wait 16m
start n1
mend n1
wait 1m
expect init request-n1 "did not come to be"
expect free n1
init n1 as request-two
wait 10s
expect init request-two committed
expect nodes 1
