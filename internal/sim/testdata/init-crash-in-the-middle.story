# B1-1: a power cut after the CAs are created: the same request continues, with the same CAs.
machines 1
crash n1 at "etcd started"
init n1
start n1
wait
expect init request-n1 committed
expect clusters 1
expect nodes 1
