"""What runs for an image: nothing is pulled, so its command must be known, or a rule says what stands for it."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.kubelet.toolbox import RANK_SERVER
from imex_dra.sandbox.kubelet.views.container import Container

SSHD = "*/usr/sbin/sshd*-D*"
"""What the MPI Operator, and most who write their own workers, start to wait for the launcher."""

PAUSE = ("sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done")


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """Patterns as in a shell; the first rule that fits wins."""

    argv: tuple[str, ...]
    image: str = "*"
    command: str = "*"

    def fits(self, container: Container) -> bool:
        command = " ".join(container.command + container.args)
        return fnmatchcase(container.image, self.image) and fnmatchcase(command, self.command)


_WORKER = Rule((RANK_SERVER,), command=SSHD)


def argv(container: Container, rules: Sequence[Rule] = ()) -> tuple[str, ...]:
    """A rule's own words, else the container's; an image without a command waits to be ended."""
    for rule in (*rules, _WORKER):
        if rule.fits(container):
            return rule.argv
    return (container.command + container.args) if container.command else PAUSE


class StandIns(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The file of `imex up --stand-ins`."""

    api_version: Literal["sandbox.imex-dra.io/v1"]
    kind: Literal["StandIns"]
    rules: tuple[Rule, ...]


def load(path: Path) -> tuple[Rule, ...]:
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=StandIns).rules
    except OSError as error:
        raise Misconfigured(f"{path} can't be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path} does not describe stand-ins: {error}") from error
