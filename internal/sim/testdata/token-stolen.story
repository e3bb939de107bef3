# B8-131: a token that is bound to another machine's key.
machines 3
init n1
wait
token t1 worker for n3
join n2 worker token t1 unawaited
wait 1m
expect refused n2 token-other-key
expect free n2
join n3 worker token t1
wait
expect nodes 2
