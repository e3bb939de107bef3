# B4-57: three of four addresses are dead: the machine does not wait for one after the other.
machines 5
init n1
wait
crash n3 n4 n5
join n2 worker token via n3 n4 n5 n1
within 3s ready n2
