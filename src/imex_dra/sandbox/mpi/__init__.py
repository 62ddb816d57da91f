"""MPI jobs on simulated nodes: an `mpirun`, and what stands for sshd in worker pods.

`mpirun` starts in a launcher's container. It reads the hostfile that the MPI Operator wrote, decides which rank
runs where, and asks a rank server in each worker's container to start its ranks there, inside the container, so
that they hold its channel and no other. 72 ranks start on two cores at once, so this package is lean: the
standard library, and nothing of ours that needs more.
"""
