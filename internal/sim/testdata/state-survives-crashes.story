# TK-11: the lock's state survives the death of the agent and a power cut.
machines 2
init n1
join n2 worker
wait
kill n1
kill n2
wait 1s
crash n1
crash n2
start n2
wait 2m
expect committed n2
start n1
wait
expect committed n1 n2
expect nodes 2
