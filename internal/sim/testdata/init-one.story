# TC-1: init returns a kubeconfig and the ID of the cluster, and the machine is committed to the cluster.
machines 1
init n1
wait
expect init request-n1 committed
expect committed n1
expect has n1 /etc/kubernetes/admin.conf /etc/kubernetes/pki/join-ca.key
expect lacks n1 /var/lib/slipway/state/create-permit
expect members 1
expect nodes 1
