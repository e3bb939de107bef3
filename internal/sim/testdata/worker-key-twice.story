# B4-62: a machine with a copy of a worker's key is refused while the worker is alive, even with a token.
machines 3
init n1
join n2 worker
wait
clone n2 n3
join n3 worker token unawaited
wait 2m
expect refused n3 key-in-use
expect free n3
expect at n2 dev-worker-0
expect ready n1 n2
