"""The objects of a Kubernetes API in memory: what our own programs use of an API server, and nothing more.

It is for simulations and tests, not a Kubernetes. The contract suite in tests/sandbox/embedded runs on a real API
server first. What is not supported is answered with 501, never with something plausible.
"""
