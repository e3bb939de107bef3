# B4-57: of three addresses the first is dead and the second cut off.
machines 4
init n1
join n2 control-plane
join n3 control-plane
wait
crash n2
wait 1m
join n4 worker token via n2 n3 n1
within 3s ready n4
