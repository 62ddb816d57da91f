"""What runs for an image: nothing is pulled, so its command must be known, or a rule says what stands for it."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

from imex_dra.sandbox.kubelet.views import Container

PAUSE = ("sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done")


class Rule(Struct, frozen=True):
    """Patterns as in a shell; the first rule that fits wins."""

    argv: tuple[str, ...]
    image: str = "*"
    command: str = "*"

    def fits(self, container: Container) -> bool:
        command = " ".join(container.command + container.args)
        return fnmatchcase(container.image, self.image) and fnmatchcase(command, self.command)


def argv(container: Container, rules: Sequence[Rule] = ()) -> tuple[str, ...]:
    """A rule's own words, else the container's; an image without a command waits to be ended."""
    for rule in rules:
        if rule.fits(container):
            return rule.argv
    return (container.command + container.args) if container.command else PAUSE
