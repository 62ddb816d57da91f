"""`imex daemon`: runs exactly one nvidia-imex with the member list of the node's partition."""
