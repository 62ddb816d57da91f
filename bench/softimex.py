"""Soft IMEX: the start and memory of daemons, the start of a domain, and the memory exchange."""

import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.line import Line, line
from imex_sandbox import softimex
from imex_sandbox.kubernetes.certificates import Authority
from imex_sandbox.kubernetes.progress import Progress
from imex_sandbox.softimex import memory
from imex_sandbox.softimex.command import query_states
from imex_sandbox.softimex.errors import SoftImexError
from tests.sandbox.softimex.rack import Node, Rack
from tests.sandbox.softimex.workload import CHANNELS, create_channels

START_SECONDS = 0.1
DAEMON_MB = 20
COPY_SHARE = 0.9
COPY_BYTES = 64 << 20
STARTS = 15
CALLS = 300
COPIES = 15


def daemon(progress: Progress) -> Iterator[Line]:
    """The time from the start of a daemon until it reports READY, and its resident memory then; medians of 15.

    The yardstick is the time that a bare Python takes to start and exit, and its resident memory.
    """
    with _rack(1) as rack:
        node = rack.nodes[0]
        node.write_config()
        starts, bare, sizes = [], [], []
        for count in range(STARTS):
            progress.show(f"start {count + 1} of {STARTS}")
            bare.append(_seconds(_start_bare_python))
            starts.append(_seconds(lambda: _start(node)))
            sizes.append(_resident(node.pid))
            node.stop()
    yield line(
        "soft-nvidia-imex: start to READY",
        statistics.median(starts),
        "s",
        yardstick=statistics.median(bare),
        yardstick_is="a bare Python",
        at_most=START_SECONDS,
    )
    yield line(
        "soft-nvidia-imex: resident memory",
        statistics.median(sizes) / 1e6,
        "MB",
        yardstick=_bare_resident() / 1e6,
        yardstick_is="a bare Python",
        at_most=DAEMON_MB,
    )


def domain(progress: Progress) -> Iterator[Line]:
    """18 daemons start at once. The time until all are READY and connected in both directions; median of 3.

    The yardstick is 18 bare Pythons that start at once, until all have exited.
    """
    seconds, bare = [], []
    for count in range(3):
        progress.show(f"domain {count + 1} of 3")
        bare.append(_seconds(lambda: _start_bare_pythons(18)))
        with _rack(18) as rack:
            for node in rack.nodes:
                node.write_config()
            seconds.append(_seconds(rack.start))
    yield line(
        "domain of 18 daemons: start to UP",
        statistics.median(seconds),
        "s",
        yardstick=statistics.median(bare),
        yardstick_is="18 bare Pythons",
    )


def encryption(progress: Progress) -> Iterator[Line]:
    """Resident memory with mutual TLS, of a single daemon and of the largest of 18 connected daemons.

    The yardstick is the same without TLS. The budget is that of a daemon without TLS.
    """
    for size, name in ((1, "alone"), (18, "the largest of 18")):
        progress.show(f"{size} with and without TLS")
        plain, encrypted = _largest(size, encrypt=False), _largest(size, encrypt=True)
        yield line(
            f"soft-nvidia-imex with TLS: resident memory, {name}",
            encrypted / 1e6,
            "MB",
            yardstick=plain / 1e6,
            yardstick_is="without TLS",
            at_most=DAEMON_MB,
        )


def exchange(progress: Progress) -> Iterator[Line]:
    """Allocate and export 64 KiB on one node, and import it on another; medians of 300.

    The yardstick is the cheapest request to the daemon: how much memory is free.
    """
    with _rack(2) as rack:
        rack.start()
        with _channel(rack.nodes[0]) as exporter, _channel(rack.nodes[1]) as importer:
            progress.show("requesting")
            request = _median(importer.memory_info)
            progress.show("exporting")
            export = _median(lambda: exporter.allocate(65536).export())
            handle = exporter.allocate(65536).export()
            progress.show("importing")
            import_handle = _median(lambda: importer.import_handle(handle))
    for name, value in (("allocate and export", export), ("import from another node", import_handle)):
        yield line(
            f"memory: {name}", value * 1e6, "us", yardstick=request * 1e6, yardstick_is="a request to the daemon"
        )


def copy(progress: Progress) -> Iterator[Line]:
    """Copy 64 MiB from imported memory to an allocation, alternating with a plain memory copy; best of 15.

    The budget is the time at which the copy has 90 % of the bandwidth of the plain copy.
    """
    with _rack(2) as rack:
        rack.start()
        with _channel(rack.nodes[0]) as exporter, _channel(rack.nodes[1]) as importer:
            theirs = importer.import_handle(exporter.allocate(COPY_BYTES).export())
            own = importer.allocate(COPY_BYTES)
            source, target = theirs.view(), own.view()
            plain_source, plain_target = memoryview(bytearray(COPY_BYTES)), memoryview(bytearray(COPY_BYTES))
            mapped, plain = [], []
            for count in range(COPIES):
                progress.show(f"copy {count + 1} of {COPIES}")
                plain.append(_copy(plain_source, plain_target))
                mapped.append(_copy(source, target))
            source.release()
            target.release()
    yield line(
        "memory: copy of 64 MiB from another node",
        min(mapped) * 1e3,
        "ms",
        yardstick=min(plain) * 1e3,
        yardstick_is="a plain memory copy",
        at_most=min(plain) * 1e3 / COPY_SHARE,
    )


BENCHMARKS = (daemon, domain, encryption, exchange, copy)


@contextmanager
def _rack(size: int) -> Iterator[Rack]:
    """A rack whose daemons run from compiled modules, as an installation does."""
    compileall.compile_dir(Path(softimex.__file__).parent, quiet=1)
    before = os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rack = Rack(size)
    try:
        for node in rack.nodes:
            create_channels(node, 1)
        yield rack
    finally:
        rack.close()
        if before is not None:
            os.environ["PYTHONDONTWRITEBYTECODE"] = before


def _channel(node: Node) -> memory.Channel:
    return memory.open_channel(node.root / CHANNELS / "channel1", node.root / "run/client/imex.sock")


def _largest(size: int, *, encrypt: bool) -> int:
    with _rack(size) as rack, tempfile.TemporaryDirectory() as directory:
        if encrypt:
            authority = Authority(Path(directory))
            for node in rack.nodes:
                node.enable_tls(authority, rack.names[node.index])
        rack.start()
        return max(_resident(node.pid) for node in rack.nodes)


def _start(node: Node) -> None:
    node.start()
    while not _is_ready(node):
        time.sleep(0.001)


def _is_ready(node: Node) -> bool:
    try:
        return next(query_states((node.address, 50005), "state", 1), "") == "READY"
    except SoftImexError:
        return False


def _start_bare_python() -> None:
    _start_bare_pythons(1)


def _start_bare_pythons(count: int) -> None:
    started = [subprocess.Popen([sys.executable, "-c", ""]) for _ in range(count)]
    for process in started:
        process.wait()


def _bare_resident() -> int:
    show = "print(open('/proc/self/status').read().split('VmRSS:')[1].split()[0])"
    return int(subprocess.run([sys.executable, "-c", show], capture_output=True, check=True).stdout) * 1024


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) * 1024


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _median(action: Callable[[], object]) -> float:
    return statistics.median(_seconds(action) for _ in range(CALLS))


def _copy(source: memoryview, target: memoryview) -> float:
    began = time.perf_counter()
    target[:] = source
    return time.perf_counter() - began
