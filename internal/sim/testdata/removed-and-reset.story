# A removed machine is refused with its old key; after a reset it is a new machine and needs a token.
machines 2
init n1
join n2 worker
wait
reset n2 refused
remove n2
wait 1m
expect refused n2 removed
reset n2
wait 10s
expect free n2
join n2 worker token
wait
expect nodes 2
