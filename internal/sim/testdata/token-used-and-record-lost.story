# B4-52: it falls between the token's use and the record: the machine that has used the token gets in, and no other.
machines 3
init n1
wait
token t1 worker
crash n1 at "put token done" #2
join n2 worker token t1
start n1
wait
expect nodes 2
join n3 worker token t1 in-vain
wait 1m
expect refused n3 token-used
expect free n3
expect records 2
