# TC-11, B8-133: a worker gets no file of the control plane, a control plane gets all of them.
machines 3
init n1
join n2 worker
join n3 control-plane
wait
expect has n2 /etc/kubernetes/pki/ca.crt /etc/kubernetes/pki/kubelet.key
expect lacks n2 /etc/kubernetes/pki/ca.key /etc/kubernetes/pki/join-ca.key /etc/kubernetes/admin.conf
expect has n3 /etc/kubernetes/pki/ca.key /etc/kubernetes/pki/join-ca.key
expect lacks n3 /var/lib/slipway/state/create-permit
