# TC-7: who asks before there is a cluster is let in when there is one.
machines 3
join n2 control-plane
join n3 worker token
wait 3m
expect free n2 n3
init n1
wait
expect members 2
expect nodes 3
