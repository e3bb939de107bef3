# B1-7: the same request again gets the same answer, even after the first answer was lost.
machines 1
init n1 as request-one
wait 1ms
init n1 as request-one
wait
init n1 as request-one
wait 10s
expect init request-one committed
expect clusters 1
