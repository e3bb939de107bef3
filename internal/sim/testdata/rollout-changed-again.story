# The operator changes the plan while a change is in progress.
machines 3
init n1
join n2 control-plane
join n3 control-plane
wait
change kube-apiserver v2
wait 2s
change kube-apiserver v3
wait 2s
change etcd v2
wait 4s
change etcd v3
wait
expect runs kube-apiserver v3 3
expect runs etcd v3 3
expect nodes 3
expect lease free
