# B4-52: it falls with the certificate signed and not sent: the same machine gets the same record.
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
