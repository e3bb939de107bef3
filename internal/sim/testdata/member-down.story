# B4-55: a fourth control plane joins while one of three is down: the quorum is never lost, and all four
# join in the end.
machines 4
init n1
join n2 control-plane
join n3 control-plane
wait
crash n3
join n4 control-plane
wait 2m
expect committed n4
start n3
wait
expect members 4
expect nodes 4
