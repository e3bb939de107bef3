# B4-62: a machine with a copy of a worker's disk is refused while the original is alive; an operator can
# approve the copy instead.
machines 3
init n1
join n2 worker
wait
clone n2 n3 whole
wait 2m
expect refused n3 key-in-use
expect says n3 "the plan is not started"
expect idle n3
expect at n2 dev-worker-0
expect ready n1 n2
approve dev-worker-0
wait 2m
expect at n3 dev-worker-0
expect refused n2 key-in-use
expect ready n1 n3
