# B1-6: two inits on two machines create two clusters with different IDs; a machine joins the cluster that
# it asks.
machines 3
init n1
init n2
wait 10s
expect inits 2
expect clusters 2
join n3 worker token via n1 n2
wait
expect committed n1 n2 n3
