# TK-5: with one of three control planes down a worker joins, and the control plane returns.
machines 4
init n1
join n2 control-plane
join n3 control-plane
wait
crash n1
wait 10s
join n4 worker token via n1 n2 n3
wait
expect ready n2 n3 n4
start n1
wait
expect members 3
expect nodes 4
