# A control plane whose clock is a day fast signs what nobody can use yet: whoever joins says which clocks do not agree. Set right, all
# goes on. One that is a day slow lets machines in.
machines 4
init n1
wait
clock n1 24h
join n2 worker
wait 1m
expect says n2 "24h0m0s behind"
expect free n2
expect ready n1
clock n1 0h
within 10s ready n2
clock n1 -24h
join n3 control-plane
wait
expect members 2
expect ready n1 n3
clock n1 0h
wait
expect ready n1 n2 n3
