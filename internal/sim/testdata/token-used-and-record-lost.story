# B4-52: the control plane crashes between the use of the token and the record: the machine that used the
# token is admitted, and no other is.
machines 3
init n1
wait
token t1 worker
crash n1 at "put token done" #2
join n2 worker token t1
start n1
wait
expect nodes 2
join n3 worker token t1 unawaited
wait 1m
expect refused n3 token-used
expect free n3
expect records 2
