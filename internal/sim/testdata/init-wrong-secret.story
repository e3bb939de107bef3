# TC-4: a wrong secret is refused, and the machine keeps serving.
machines 1
init n1 as request-wrong wrong-secret
wait 20s
expect init request-wrong "a different init secret"
expect free n1
init n1
wait
expect init request-n1 committed
expect nodes 1
