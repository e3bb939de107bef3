# Nodes whose clocks become wrong keep their state: no CA is created twice, nothing is removed, and once
# the clocks are corrected the nodes are as they were.
machines 3
init n1
join n2 control-plane
join n3 worker
wait
clock n1 -87600h
clock n2 87600h
clock n3 -17520h
kill n1
kill n2
kill n3
wait 2m
expect committed n1 n2 n3
expect members 2
expect says n3 "clock"
clock n1 0h
clock n2 0h
clock n3 0h
wait
expect ready n1 n2 n3
expect members 2
expect clusters 1
