"""Real Kubernetes on this machine without Docker: a control plane and nodes, built from source."""
