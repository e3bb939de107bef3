# B4-53: five control planes at once; etcd accepts one learner at a time, and all five join.
machines 5
init n1
join n2 control-plane
join n3 control-plane
join n4 control-plane
join n5 control-plane
wait
expect members 5
expect nodes 5
