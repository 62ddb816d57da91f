"""`imex daemon`: keeps exactly one nvidia-imex running with the partition's member list."""
