# The same when the agents die: the machine whose API server is broken keeps the rollout lease until it is
# repaired.
machines 3
init n1
join n2 control-plane
join n3 control-plane
wait
change kube-apiserver broken
wait 1m
kill n1 n2 n3
wait 5m
expect runs kube-apiserver broken 1
expect lease kube-apiserver broken
change kube-apiserver v2
wait
expect runs kube-apiserver v2 3
expect nodes 3
expect lease free
