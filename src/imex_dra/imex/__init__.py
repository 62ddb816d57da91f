"""The contract of the IMEX service: its files, its query tool, and the member list of its domain."""
