# B4-61: another machine with a node's name waits for approval; after that the old machine is unknown.
machines 3
init n1
join n2 worker
wait
expect name n2 dev-worker-0
token t1 worker node dev-worker-0
crash n2
join n3 worker token t1
wait 1m
expect says n3 "approval"
expect free n3
approve dev-worker-0
wait
expect name n3 dev-worker-0
expect records 2
start n2
wait 1m
expect refused n2 stranger
