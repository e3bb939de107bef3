# TK-1, TC-1: one machine forms a cluster, three form one with three members, and a worker joins.
machines 4
init n1
join n2 control-plane
join n3 control-plane
join n4 worker token
wait
expect init request-n1 committed
expect clusters 1
expect members 3
expect nodes 4
expect name n4 dev-worker-0
