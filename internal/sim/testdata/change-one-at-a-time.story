# Control planes apply a changed flag one at a time.
machines 4
init n1
join n2 control-plane
join n3 control-plane
join n4 worker
wait
change kube-apiserver v2
wait
expect runs kube-apiserver v2 3
change etcd v2
change kube-apiserver v3
wait
expect runs etcd v2 3
expect runs kube-apiserver v3 3
expect clusters 1
expect members 3
expect nodes 4
expect lease free
