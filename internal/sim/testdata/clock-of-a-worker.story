# B4: a worker whose clock is wrong reports both clocks and does not claim the machine; once the clock is
# corrected, it joins within seconds.
machines 3
init n1
wait
clock n2 -17520h
clock n3 87600h
join n2 worker token
join n3 worker token
wait 1m
expect says n2 "clocks that agree"
expect says n2 "730 days behind"
expect says n3 "3650 days ahead"
expect free n2 n3
expect ready n1
clock n2 0h
clock n3 0h
within 10s ready n2 n3
