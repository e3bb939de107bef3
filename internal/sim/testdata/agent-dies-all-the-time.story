# The bootstrap node's agent dies every few milliseconds, and the cluster is created all the same.
machines 2
init n1
join n2 control-plane
kill n1 at "keep the plan"
kill n1 at "create cert/ca done"
kill n1 at "init commit"
kill n1 at "add learner done"
kill n2 at "commit"
kill n2 at "permit"
wait
expect crashed n1 n2
expect init request-n1 committed
expect members 2
expect nodes 2
