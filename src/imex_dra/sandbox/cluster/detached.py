"""`imex up --detach`: the same program in a session of its own, watched until it is ready."""

import subprocess
import sys
import time
from pathlib import Path

import click
import msgspec

from imex_dra.base.errors import ImexError, Unavailable
from imex_dra.base.logging import configure
from imex_dra.sandbox.cluster import running
from imex_dra.sandbox.cluster.handle import is_ready
from imex_dra.sandbox.cluster.hold import holder, is_held, taken_already
from imex_dra.sandbox.cluster.places import Places
from imex_dra.sandbox.cluster.settings import Options

_LOOK = 0.1


def start(options: Options) -> None:
    """What it says is shown until it is ready, and kept in a log."""
    name = options.cluster.name
    if is_held(name):
        raise taken_already(name)
    state = Places(name).state.parent
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = state / f"{name}.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", __name__, msgspec.json.encode(options)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _follow(name, child, log)
    except BaseException:
        child.terminate()
        child.wait(timeout=60)
        raise


def _follow(name: str, child: subprocess.Popen[bytes], log: Path) -> None:
    with log.open() as said:
        while True:
            ended, ready = child.poll() is not None, is_ready(name) and holder(name) == child.pid
            for line in said:
                click.echo(line, nl=False, err=not line.startswith("export "))
            if ended:
                raise Unavailable(f"the cluster {name} did not start: what it said stands above and in {log}")
            if ready:
                child.returncode = 0  # it lives on: nobody waits for it here
                return
            time.sleep(_LOOK)


def main() -> None:
    configure("warning")
    try:
        running.run(msgspec.json.decode(sys.argv[1], type=Options))
    except ImexError as error:
        click.echo(f"imex: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
