# R-58: with one of three control planes down, no other can be removed.
machines 3
init n1
join n2 control-plane
join n3 control-plane
wait
crash n3
wait 30s
remove n2 refused
start n3
wait
expect members 3
