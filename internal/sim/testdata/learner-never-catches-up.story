# B4-54: a learner that never catches up loses the membership lease, and the cluster is as before.
machines 3
catchup 2h
init n1
wait
join n2 control-plane
wait 9m
expect says n2 "etcd-voter"
join n3 worker
wait 5m
expect ready n1 n3
expect committed n2
