# B8-130: six machines use one token, and one of them is admitted.
machines 7
init n1
wait
token t1 worker
join n2 worker token t1 unawaited
join n3 worker token t1 unawaited
join n4 worker token t1 unawaited
join n5 worker token t1 unawaited
join n6 worker token t1 unawaited
join n7 worker token t1 unawaited
wait 2m
expect records 2
expect nodes 2
