"""The fault-injecting proxy between each node and the API server.

Every program and pod of a simulated node reaches the API server through the node's own proxy, so a fault can
stall or refuse the node's connections, fail some of its requests, or expire its watches. Other nodes are not
affected.
"""
