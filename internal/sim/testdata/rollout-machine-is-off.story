# The others wait for a machine that is off, for two minutes at most; it applies the change when it
# returns.
machines 3
init n1
join n2 control-plane
join n3 control-plane
wait
crash n3
change etcd v2
wait 1m
expect runs etcd v2 0
wait 3m
expect runs etcd v2 2
start n3
wait
expect runs etcd v2 3
expect nodes 3
expect lease free
