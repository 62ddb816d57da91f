"""`imex controller`: the one writer of slots and channels."""
