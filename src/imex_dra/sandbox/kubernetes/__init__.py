"""Real Kubernetes on this machine: a control plane and nodes, without Docker."""
