# TC-5: a machine without an init secret cannot be initialised.
machines 1
init n1 no-secret
wait 1m
expect free n1
expect says n1 "a cluster to join"
expect clusters 0
