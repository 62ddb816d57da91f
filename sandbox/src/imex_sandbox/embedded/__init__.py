"""A Kubernetes API in Python, in memory: what our programs, simulated kubelets and kubectl on a laptop use of it.

It is for simulations, tests and laptops, not a Kubernetes. `objects` and `requests` are its core, which
simulations use directly; `server` adds HTTPS, users, defaults, schemas and tables. The contract suite in
tests/sandbox/embedded runs on a real API server first. What is not supported is answered with 501 or a clear
message, never with something plausible.
"""
