# All machines lose power in the middle of a change: components that are not running need no lease and
# start with the new flag.
machines 3
init n1
join n2 control-plane
join n3 control-plane
wait
change etcd v2
change kube-apiserver v2
wait 3s
crash n1 n2 n3
wait 1m
start n3 n1 n2
wait
expect runs etcd v2 3
expect runs kube-apiserver v2 3
expect members 3
expect nodes 3
expect lease free
