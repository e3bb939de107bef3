# A worker's disk is moved to another machine while the old one is off: the record follows. The old machine
# is refused when it returns.
machines 3
init n1
join n2 worker
wait
crash n2
wait 2m
clone n2 n3 whole
wait
expect at n3 dev-worker-0
expect ready n1 n3
expect records 2
start n2
wait 2m
expect refused n2 key-in-use
expect at n3 dev-worker-0
expect ready n1 n3
