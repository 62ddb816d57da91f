"""A kubelet of ours: keeps the real one's contracts with API server, drivers and pods, hundreds in one process."""
