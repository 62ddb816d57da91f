"""A whole cluster on one machine: control planes, kubelets and faults, for tests and for `imex up`."""
