# A worker without network for ten minutes stays committed.
machines 2
init n1
join n2 worker
wait
cut n2
wait 10m
expect committed n2
expect says n2 "a join service"
heal n2
wait
expect nodes 2
