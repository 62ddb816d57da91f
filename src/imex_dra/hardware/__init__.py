"""The hardware of a node: its NVLink fabric, its IMEX channels, and the device nodes that a container needs."""
