"""A simulated kubelet and container runtime, hundreds of them in one process.

It keeps the real kubelet's contracts with the API server, DRA drivers and pods (`docs/simulated-kubelet.md`).
"""
