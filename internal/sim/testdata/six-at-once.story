# TK-2: six machines that all want to join form one cluster.
machines 6
join n2 control-plane
join n3 control-plane
join n4 control-plane
join n5 worker token
join n6 worker
init n1
wait
expect clusters 1
expect members 4
expect nodes 6
