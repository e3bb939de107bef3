# A removed machine is refused under its old key; reset, it is another one and needs a token.
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
