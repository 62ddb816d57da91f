"""Paths of a host whose root directory is mounted somewhere: links are followed inside of it, never out of it.

Absolute links are common there (/var/run, /etc/alternatives, a driver's directory): in a container they would lead
to the container's own files.
"""

from pathlib import Path, PurePosixPath

_MOST_LINKS = 40
"""As many as the kernel follows."""


def inside(root: Path, name: str) -> Path:
    """Where the host itself would arrive, whether something is there or not."""
    here, ahead, links = root, list(_steps(name)), 0
    while ahead:
        step = ahead.pop(0)
        if step == "..":
            here = here if here == root else here.parent
        elif links < _MOST_LINKS and (here / step).is_symlink():
            links += 1
            target = (here / step).readlink()
            here = root if target.is_absolute() else here
            ahead = [*_steps(str(target)), *ahead]
        else:
            here = here / step
    return here


def _steps(name: str) -> tuple[str, ...]:
    return PurePosixPath(name.lstrip("/")).parts
