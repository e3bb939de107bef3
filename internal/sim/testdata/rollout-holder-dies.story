# A machine that dies for good with its etcd stopped loses the rollout lease after half a minute; the
# others do not wait forever.
machines 3
init n1
join n2 control-plane
join n3 control-plane
wait
crash n1 at "exchange unit/etcd"
change etcd v2
wait 6m
expect crashed n1
expect runs etcd v2 2
expect members 3
expect nodes 2
start n1
wait
expect runs etcd v2 3
expect nodes 3
expect lease free
