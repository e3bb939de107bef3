# TC-8: init claims the machine between a join's grant and its claim: the join gives up.
machines 2
init n1
wait
stall n2 at "claim" 2s
join n2 control-plane token via n1
expect crashed n2
init n2
wait 1m
expect init request-n2 committed
expect clusters 2
expect ready n1 n2
