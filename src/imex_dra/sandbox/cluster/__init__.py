"""A whole cluster of simulated racks on a real control plane: what `imex up` runs, and how others take hold of it.

    from imex_dra.sandbox.cluster.handle import Cluster, running
    from imex_dra.sandbox.racks import of_racks

    with running(of_racks(2, "gb200-nvl72", name="trial")) as cluster:  # `imex up`, in a process of its own
        cluster.kubectl("get", "nodes", "-L", "nvidia.com/gpu.clique")
        node = cluster.nodes["r0-n03"]                                  # name, rack, address, root (a NodeRoot)
        node.kill("imex-node")                                          # stays down until it is started again
        node.start("imex-node")

    cluster = Cluster("trial")                                          # one that somebody else started

Everything but reading goes through the cluster's `control.sock` (`sandbox.control`: one request, one reply), so a
test, `imex fault` and a person do the same things in the same way:

    do                   node  program                  what happens
    status               -     -                        {name, number, nodes, down: [programs]}
    stop                 -     -                        as SIGTERM to `imex up`
    kill, start          yes   kubelet                  the kubelet alone: containers go on
    kill, start          yes   imex-node, imex-daemon   SIGKILL; stays down until `start`
    hang, resume         yes   the same, nvidia-imex    SIGSTOP, SIGCONT
    kill                 yes   nvidia-imex              SIGKILL; imex-daemon starts another
    pid                  yes   the same three           the process's id; imex-node and imex-daemon must be apart
    power-off            yes   -                        kubelet, containers and programs end at once
    power-on             yes   -                        /run and /dev are empty; a new boot id, or option `boot_id`
    kill, start, hang,   -     imex-controller          as above
    resume, pid
    kill, start, hang,   -     kube-apiserver           it keeps its port and its data
    resume
    compact              -     -                        etcd forgets the past
    gateway              any   any                      the gateway before the API server decides (`gateway.py`)

A program of a node that nobody killed is started again when it ends, as a kubelet would do, and imex-controller
is, too; without a part of its control plane the cluster ends (`supervisor`). Programs of nodes are tasks of one
process, the crew, because 72 interpreters would take a laptop's breath; one that is to be killed or to hang
becomes a process of its own first (it is started anew, apart, and waited for), so that the signal is a real
one. Hardware, cables and addresses are files: rewrite them through `node.root`.

What lies where, for a cluster with the name NAME:

    $XDG_STATE_HOME/imex-dra/NAME/    kubeconfig, pid, cluster.json, logs/, control-plane/ (audit.log, …)
    /tmp/imex-UID/NAME/               control.sock, fabric/, and a directory for each node, its root

Both are emptied when the cluster ends, however it ends; logs stay until the next `up`.
"""
