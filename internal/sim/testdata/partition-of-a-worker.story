# A worker without its network for ten minutes stays what it is.
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
