# B4-50: the machine crashes again while the first attempt is wiped and after the lock is free: it is still
# the same machine.
machines 2
init n1
crash n2 at "claimed"
join n2 worker
expect crashed n2
crash n2 at "forget plan.json"
start n2
expect crashed n2
kill n2 at "committed"
start n2
wait
expect crashed n2
expect name n2 dev-worker-0
expect records 2
expect nodes 2
