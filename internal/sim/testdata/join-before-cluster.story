# TC-7: machines that ask before the cluster exists are admitted once it does.
machines 3
join n2 control-plane
join n3 worker token
wait 3m
expect free n2 n3
init n1
wait
expect members 2
expect nodes 3
