# TK-4: all machines lose power at the same time.
machines 4
init n1
join n2 control-plane
join n3 control-plane
join n4 worker
wait
crash n1 n2 n3 n4
wait 1h
start n4 n2 n1 n3
wait
expect clusters 1
expect members 3
expect nodes 4
