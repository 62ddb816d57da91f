"""The container runtime's contract: device specs as files in a directory it watches."""
