# B4-50, TC-10: the joining machine crashes after its certificates are written and before its plan is: its
# files are removed, and it joins again.
machines 2
init n1
crash n2 at "keep the plan"
join n2 worker token
start n2
wait
expect records 2
expect nodes 2
