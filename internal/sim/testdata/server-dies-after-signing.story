# B4-52: the control plane crashes after it has signed the certificate and before it sends it: the same
# machine gets the same record.
machines 2
init n1
wait
crash n1 at "answer certificates"
join n2 worker token
start n1
wait
expect records 2
expect name n2 dev-worker-0
expect nodes 2
