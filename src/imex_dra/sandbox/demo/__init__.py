"""`imex demo`: two racks, a driver, a job over 72 GPUs, a stranger who is refused, and what was found of each."""
