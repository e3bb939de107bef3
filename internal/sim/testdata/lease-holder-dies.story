# The holder of the membership lease dies for good after its learner was added: the next machine joins.
machines 3
init n1
wait
crash n2 at "permit"
join n2 control-plane
wait 1s
join n3 control-plane
wait 2m
expect crashed n2
expect ready n3
start n2
wait
expect members 3
expect nodes 3
