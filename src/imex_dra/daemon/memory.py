"""The last member list, in a file: after a reboot the daemon is up before anybody else is."""

from pathlib import Path

import msgspec
import structlog

from imex_dra.base.files import write_atomically
from imex_dra.imex.membership import Membership

log = structlog.get_logger()


class Memory:
    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> Membership | None:
        """None if there is nothing, or nothing that can be read: the node program will say it again."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Membership)
        except (OSError, ValueError):
            return None

    def write(self, membership: Membership) -> None:
        """A disk that takes nothing costs only the next reboot a wait for the node program."""
        try:
            write_atomically(self._file, msgspec.json.encode(membership))
        except OSError as error:
            log.error("the member list can't be kept for a restart", file=str(self._file), error=str(error))

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)
