# TC-3: an init that cannot finish is undone: the machine is free and clean, reports the reason, and
# accepts the next request.
machines 1
fail n1 unit/kube-apiserver
init n1
wait 20m
expect init request-n1 "failed"
expect free n1
expect lacks n1 /etc/kubernetes/pki/ca.key /var/lib/slipway/plan/plan.json /var/lib/slipway/state/create-permit
repair n1
init n1 as request-two
wait 10s
expect init request-two committed
expect nodes 1
