# TC-2, B1-8: a second request on a machine of a cluster is refused and changes nothing.
machines 1
init n1
wait
init n1 as request-two
wait 10s
expect init request-two "this machine is committed"
expect clusters 1
expect nodes 1
