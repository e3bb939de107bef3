# B1-1: a crash when the cluster is ready and the lock is not committed yet.
machines 1
crash n1 at "init commit"
init n1
start n1
wait
expect init request-n1 committed
expect clusters 1
expect nodes 1
