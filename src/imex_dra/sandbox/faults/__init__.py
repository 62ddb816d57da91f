"""Faults as data: what goes wrong in a simulated cluster, when, for how long, and how it is mended again."""
