"""Container Device Interface: device specs in a directory that the container runtime watches."""
