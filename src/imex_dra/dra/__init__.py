"""The kubelet's contract: plugin registration and Dynamic Resource Allocation, over unix sockets."""
