"""What a simulated rack costs: its daemons, its domain, its memory."""

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
from imex_dra import softimex
from imex_dra.sandbox.kubernetes.certificates import Authority
from imex_dra.sandbox.kubernetes.progress import Progress
from imex_dra.softimex import inquiry, memory
from imex_dra.softimex.errors import SoftImexError
from tests.softimex.keys import equip
from tests.softimex.rack import Node, Rack
from tests.softimex.workload import CHANNELS, give_channels

START_SECONDS = 0.1
DAEMON_MB = 20
COPY_SHARE = 0.9
COPY_BYTES = 64 << 20
STARTS = 15
CALLS = 300
COPIES = 15


def daemon(progress: Progress) -> Iterator[Line]:
    """From the start of a process to its first answer READY, the median of 15; and its resident memory then.

    The yardstick is a bare Python that starts and ends. Its memory is what such a Python has.
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
    """18 daemons started at once, until all are READY and connected in both directions, the median of 3.

    The yardstick is 18 bare Pythons started at once, until all have ended.
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
    """Resident memory with mutual TLS: of a daemon alone, and of the largest of 18 that are all connected.

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
    """Allocate and export 64 KiB on one node, import it on another, the median of 300 each.

    The yardstick is the library's cheapest question to its daemon: how much memory is free.
    """
    with _rack(2) as rack:
        rack.start()
        with _channel(rack.nodes[0]) as exporter, _channel(rack.nodes[1]) as importer:
            progress.show("asking")
            ask = _median(importer.memory_info)
            progress.show("exporting")
            export = _median(lambda: exporter.allocate(65536).export())
            handle = exporter.allocate(65536).export()
            progress.show("importing")
            attach = _median(lambda: importer.attach(handle))
    for name, value in (("allocate and export", export), ("import from another node", attach)):
        yield line(
            f"memory: {name}", value * 1e6, "us", yardstick=ask * 1e6, yardstick_is="a question to the daemon"
        )


def copy(progress: Progress) -> Iterator[Line]:
    """Copy 64 MiB from imported memory to one's own, alternating with a plain copy; the best of 15 each.

    The budget is the time at which the copy through the mapping would have 90 % of the plain copy's bandwidth.
    """
    with _rack(2) as rack:
        rack.start()
        with _channel(rack.nodes[0]) as exporter, _channel(rack.nodes[1]) as importer:
            theirs = importer.attach(exporter.allocate(COPY_BYTES).export())
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
    """Daemons as they are installed: with compiled modules."""
    compileall.compile_dir(Path(softimex.__file__).parent, quiet=1)
    before = os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rack = Rack(size)
    try:
        for node in rack.nodes:
            give_channels(node, 1)
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
                equip(node, authority, rack.names[node.slot])
        rack.start()
        return max(_resident(node.pid) for node in rack.nodes)


def _start(node: Node) -> None:
    node.start()
    while not _is_ready(node):
        time.sleep(0.001)


def _is_ready(node: Node) -> bool:
    try:
        return next(inquiry.states((node.address, 50005), "state", 1), "") == "READY"
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
