"""The kubelet's DRA plugin API: registration, NodePrepareResources and device health, over unix sockets."""
