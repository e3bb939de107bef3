# B4-51: the control plane crashes after it has written the record and before it sends the grant.
machines 2
init n1
wait
crash n1 at "answer grant"
join n2 worker token
start n1
wait
expect records 2
expect nodes 2
