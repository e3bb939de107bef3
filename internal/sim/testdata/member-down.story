# B4-55: a fourth control plane while one of three is down: nothing loses the quorum, and all end well.
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
