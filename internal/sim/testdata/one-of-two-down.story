# B4-55: with one of two members down there is no quorum: the joining machine waits and reports what it
# waits for.
machines 3
init n1
join n2 control-plane
wait
crash n2
join n3 control-plane
wait 1m
expect free n3
start n2
wait
expect members 3
expect nodes 3
