"""Runs imex-dra without hardware: simulated racks, soft IMEX, simulated and real kubelets, faults."""

__version__ = "0.1.0.dev0"
