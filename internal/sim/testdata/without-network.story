# TK-12: a control plane that boots without any network starts from its disk.
machines 1
init n1
wait
cut n1
crash n1
start n1
wait
expect nodes 1
