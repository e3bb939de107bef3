# B4-56: the joining machine is partitioned right after its learner was added: the learner is removed, the
# cluster is unaffected, and the machine joins later.
machines 2
init n1
cut n2 at "permit"
join n2 control-plane
wait 1m
expect crashed n2
expect members 1
heal n2
wait
expect members 2
expect nodes 2
