"""`imex demo`: the driver on two simulated racks, from a ComputeDomain to a checked job over 72 GPUs."""
