# B1-2: the machine crashes a second time while it recovers from the first crash, and then a third time.
machines 1
crash n1 at "init installed"
init n1
expect crashed n1
crash n1 at "init keep"
start n1
expect crashed n1
crash n1 at "init commit"
start n1
expect crashed n1
start n1
wait
expect init request-n1 committed
expect clusters 1
expect nodes 1
