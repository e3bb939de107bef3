# TK-3, TK-6: from one control plane to three and back.
machines 3
init n1
wait
expect members 1
join n2 control-plane
wait
expect members 2
join n3 control-plane
wait
expect members 3
remove n3
expect members 2
reset n3
remove n2
expect members 1
expect records 1
expect ready n1
