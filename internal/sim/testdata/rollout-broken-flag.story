# A flag that breaks the first API server breaks only that one, although the answer to a renewal is lost.
# The others serve, and the corrected flag reaches the broken one at once.
machines 3
init n1
join n2 control-plane
join n3 control-plane
wait
lose-answer n1 at "put rollout lease done" #4
lose-answer n2 at "put rollout lease done" #4
lose-answer n3 at "put rollout lease done" #4
change kube-apiserver broken
wait 5m
expect runs kube-apiserver broken 1
expect lease kube-apiserver broken
expect nodes 0
change kube-apiserver v2
wait
expect runs kube-apiserver v2 3
expect nodes 3
expect lease free
