# B4-62: a machine with a copy of a control plane's disk is refused, and the original is unaffected.
machines 3
init n1
join n2 control-plane
wait
clone n2 n3
join n3 control-plane token unawaited
wait 1m
expect refused n3 address-moved
expect free n3
expect members 2
expect ready n1 n2
