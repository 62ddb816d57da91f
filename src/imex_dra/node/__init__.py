"""`imex node`: publishes one node's channel devices and its NVLinkNode, and prepares claims for its kubelet."""
