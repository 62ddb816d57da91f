"""Simulated racks with a control plane, as `imex up` runs them, and how tests and faults control them.

    from imex_sandbox.cluster.handle import Cluster, running
    from imex_sandbox.racks import of_racks

    with running(of_racks(2, "gb200-nvl72", name="trial")) as cluster:  # `imex up` in a process of its own
        cluster.kubectl("get", "nodes", "-L", "nvidia.com/gpu.clique")
        node = cluster.nodes["r0-n03"]                                  # name, rack, address, root (a NodeRoot)
        node.kill("imex-node")                                          # stays down until it is started
        node.start("imex-node")

    cluster = Cluster("trial")                                          # a cluster that runs already

All actions are requests to the cluster's `control.sock` (`imex_sandbox.control`: one request, one reply):

    action               node  program                  effect
    status               -     -                        {name, number, nodes, down: [programs]}
    stop                 -     -                        the same as SIGTERM to `imex up`
    kill, start          yes   kubelet                  the kubelet only: its containers keep running
    kill, start          yes   imex-node                SIGKILL; the program stays down until `start`
    kill, start          yes   imex-supervisor          the same, with its nvidia-imex, as when a container ends
    hang, resume         yes   the same, nvidia-imex    SIGSTOP, SIGCONT
    kill                 yes   nvidia-imex              SIGKILL; its supervisor starts it again
    pid                  yes   the same three           the pid; the program gets a process of its own first
    power-off            yes   -                        kubelet, containers and programs end at once
    power-on             yes   -                        a new boot id; /run and /dev are empty
    proxy                yes   -                        sets the behavior of the node's proxy (`proxy.behavior`)
    kill, start, hang,   -     imex-controller          as above
    resume, pid
    kill, start, hang,   -     kube-apiserver           it keeps its port and its data
    resume

A program of a node that ends is restarted, as a kubelet would do, unless it was killed by a request.
imex-controller is restarted, too. If a part of the control plane ends, the cluster stops (`supervisor`). The
node programs are tasks of one process (`drivers`); a program that gets a signal is first restarted in a
process of its own (`programs`). Hardware, network and addresses of a node are files that can be rewritten
through `node.root`.

Files of a cluster NAME:

    $XDG_STATE_HOME/imex-dra/NAME/    kubeconfig, pid, cluster.json, logs/, control-plane/ (audit.log, ...)
    /tmp/imex-UID/NAME/               control.sock, fabric/, and a root directory for each node

Everything but the logs is removed when the cluster ends, however it ends. Logs stay until the next `imex up`.
"""
