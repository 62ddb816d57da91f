"""File descriptors: a rack in one process needs more of them than a shell's soft limit allows."""

import resource


def raise_limit() -> None:
    """To the hard limit: each node holds a watch, and sockets to its plugin and its daemon."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
