# Agents die while they hold the rollout lease, for a moment or for longer than the lease lasts: what they
# stopped is started first.
machines 3
init n1
join n2 control-plane
join n3 control-plane
wait
kill n1 at "exchange unit/etcd"
kill n2 at "exchange unit/etcd" for 45s
kill n3 at "replace unit/kube-apiserver" for 45s
kill n1 at "replace unit/kube-apiserver done"
change etcd v2
change kube-apiserver v2
wait
expect crashed n1 n2 n3
expect runs etcd v2 3
expect runs kube-apiserver v2 3
expect nodes 3
expect lease free
