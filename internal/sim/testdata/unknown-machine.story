# B8-131: a machine with neither record nor token is refused, stores nothing, and reports what it waits
# for.
machines 2
init n1
wait
join n2 worker unknown unawaited
wait 5m
expect refused n2 key-unknown
expect free n2
expect says n2 "permission to join the cluster"
expect records 1
