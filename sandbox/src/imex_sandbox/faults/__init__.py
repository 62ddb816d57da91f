"""Fault injection in a running simulated cluster: faults are data, and each one can be undone."""
