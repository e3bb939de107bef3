# An etcd that does not start with its new flag remains the only one of three, even if agents die
# meanwhile.
machines 3
init n1
join n2 control-plane
join n3 control-plane
wait
change etcd broken
wait 1m
kill n1 n2 n3
wait 5m
expect runs etcd broken 1
expect lease etcd broken
change etcd v2
wait
expect runs etcd v2 3
expect members 3
expect nodes 3
expect lease free
