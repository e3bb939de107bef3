# B4-53: eight workers at once.
machines 9
init n1
join n2 worker
join n3 worker token
join n4 worker
join n5 worker token
join n6 worker
join n7 worker token
join n8 worker
join n9 worker token
wait
expect records 9
expect nodes 9
