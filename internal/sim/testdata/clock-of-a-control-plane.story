# A control plane whose clock is a day fast signs certificates that are not valid yet: the joining machine
# reports which clocks disagree. Once the clock is corrected, the join continues. A control plane whose
# clock is a day slow, in a younger cluster, signs nothing, and the joining machine reports that.
machines 4
init n1
wait
clock n1 24h
join n2 worker
wait 1m
expect says n2 "24h0m0s behind"
expect free n2
expect ready n1
clock n1 0h
within 10s ready n2
clock n1 -24h
join n3 control-plane
wait
expect members 2
expect ready n1 n3
join n4 worker token via n1
wait 1m
expect says n4 "24h0m0s ahead of"
expect free n4
clock n1 0h
within 10s ready n4
expect ready n1 n2 n3 n4
