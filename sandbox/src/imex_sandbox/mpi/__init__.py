"""MPI jobs on simulated nodes: `mpirun`, and a server that replaces sshd in worker pods.

`mpirun` runs in the container of the launcher. It reads the hostfile of the MPI Operator, maps ranks to hosts,
and asks the rank server in each worker to start ranks in the container of the worker, where they have the channel
of that container. A job can start 72 ranks on a machine with two cores, so this package imports only the standard
library and modules that do the same.
"""
