# The rollout lease is taken, renewed and released, and the answers are lost: each holder still recognises
# its lease.
machines 3
init n1
join n2 control-plane
join n3 control-plane
wait
lose-answer n1 at "put rollout lease done" #1
lose-answer n1 at "put rollout lease done" #2
lose-answer n2 at "put rollout lease done" #1
lose-answer n2 at "put rollout lease done" #3
lose-answer n3 at "put rollout lease done" #2
lose-answer n3 at "put rollout lease done" #4
change etcd v2
change kube-apiserver v2
wait
expect crashed n1 n2 n3
expect runs etcd v2 3
expect runs kube-apiserver v2 3
expect nodes 3
expect lease free
