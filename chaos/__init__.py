"""`nsml doctor chaos`: faults on a real platform of its own, and a judgement of what it did then.

hosts       the machines: network namespaces with cables that can be cut, or the loopback
disks       what their files lie on: small file systems that can be full
parts       processes that are started, killed, paused: etcd members, PostgreSQL, control planes, agents
platform    all of them together in one folder
reaper      ends all of that when a run is killed
load        clients, and the programs that they submit, which keep ledgers of their own
nemesis     the faults, each with the proof that it fired
recording   what everybody did, as lines of JSON in a folder
check       what is wrong with a recorded run, and what of it a full disk explains: pure
run  told   one run from start to end / what a person and a program are told of it
"""
