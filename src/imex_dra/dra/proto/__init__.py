"""Wire messages of the kubelet's plugin APIs, generated from the .proto files in this directory."""
