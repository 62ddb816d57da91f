"""What an administrator can choose for the controller: the flags of `imex controller`."""

from typing import NamedTuple


class Settings(NamedTuple):
    suspend_after: float = 600.0
    """Seconds until a member that is Unknown may be Suspended. A node that reboots is back earlier."""
    max_channels_per_namespace: int = 0
    """In each NVLink partition; 0 for no limit."""
    max_nodes: int = 0
    """Indexes of an NVLink partition that is created from now on; 0: what the GPUs' product needs, and spares."""
    daemon_certificates: bool = False
    """Issue the certificate with which IMEX daemons authenticate each other."""
    webhook_certificates: bool = False
    """Issue the certificate of `imex webhook`."""


DEFAULTS = Settings()
