# TC-9, B1-5: five requests at once on one machine, and one of them wins.
machines 1
init n1 as request-a
init n1 as request-b
init n1 as request-c
init n1 as request-d
init n1 as request-e
wait 30s
expect inits 1
expect clusters 1
expect members 1
expect nodes 1
