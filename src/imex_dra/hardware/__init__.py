"""What a node is made of: its fabric, its channels, and what a container needs to use one."""
