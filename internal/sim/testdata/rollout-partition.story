# The holder of the rollout lease is partitioned in the middle of a restart, and returns later.
machines 3
init n1
join n2 control-plane
join n3 control-plane
wait
cut n1 at "exchange unit/etcd"
change etcd v2
change kube-apiserver v2
wait 6m
heal n1
wait
expect crashed n1
expect runs etcd v2 3
expect runs kube-apiserver v2 3
expect nodes 3
expect lease free
