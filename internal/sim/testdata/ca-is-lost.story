# A control plane that has lost the CA's key reports it and never creates another one.
machines 2
init n1
join n2 control-plane
wait
crash n2
lose n2 /etc/kubernetes/pki/ca.key /etc/kubernetes/pki/ca.crt
start n2
wait 1m
expect says n2 "only init may create it"
expect lacks n2 /etc/kubernetes/pki/ca.key
expect committed n2
