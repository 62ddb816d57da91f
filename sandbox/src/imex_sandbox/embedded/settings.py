"""The settings of the process. A module of its own: who starts the process need not import the server."""

from msgspec import Struct


class Settings(Struct, frozen=True):
    """Of the process."""

    port: int
    certificate: str
    key: str
    authority: str
    token_file: str
    audit_log: str
    kubelet_certificate: str
    kubelet_key: str
    controllers: bool = True
    """Whether the controllers and the scheduler run, too."""
