"""The IMEX service of a node: its files, its ctl, its process."""
