# B4-51: the join service falls when it has written who comes, and before it says so.
machines 2
init n1
wait
crash n1 at "answer grant"
join n2 worker token
start n1
wait
expect records 2
expect nodes 2
