# B4-65: a machine that presents its token an hour late is refused, and joins with a new one.
machines 2
init n1
wait
token t1 worker ttl 5m
cut n2
join n2 worker token t1 unawaited
wait 1h
heal n2
wait 2m
expect free n2
expect says n2 "permission to join"
join n2 worker token
wait 2m
expect ready n2
