# B8-131, B8-133: a machine with a worker's token becomes a worker, whatever role it asks for.
machines 2
init n1
wait
token t1 worker
join n2 control-plane token t1
wait
expect members 1
expect name n2 dev-worker-0
expect lacks n2 /etc/kubernetes/pki/ca.key
