# TC-8: a machine that is initialised and told to join at the same time does exactly one of the two.
machines 2
init n1
wait
init n2
join n2 control-plane via n1
wait 1m
expect committed n1 n2
expect ready n1 n2
