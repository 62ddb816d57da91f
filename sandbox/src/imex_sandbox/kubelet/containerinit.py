"""The init program of a container: prepares the root file system in new namespaces and executes the command.

    python -I -S containerinit.py <spec> <report fd>

`unshare` runs it in new user, mount, pid, UTS and IPC namespaces. It builds a root file system (the host's files
read-only; private /tmp, /run, /dev and /proc; the mounts of the container), pivots into it and executes the
command. It writes one zero byte to the report descriptor just before that, or an error message.

To mount below a read-only directory that lacks the mount point, it mounts an overlay over the nearest directory
that exists.

Runs isolated and imports the standard library only: its run time is part of every container start.
"""

# pathlib would take a third of the run time of this program.
# ruff: noqa: PTH102, PTH103, PTH106, PTH112, PTH113, PTH115, PTH118, PTH120, PTH123, PTH211

import ctypes
import json
import os
import socket
import sys

_LIBC = ctypes.CDLL(None, use_errno=True)
_MS_BIND, _MS_REC, _MNT_DETACH = 0x1000, 0x4000, 2
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1
_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
HOST, SCRATCH = ".host", ".scratch"
_PRIVATE = {"tmp", "run", "dev", "proc", "sys", HOST, SCRATCH}
TOOLBOX = "/run/imex/bin"
STARTED = b"\0"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    strings = [text.encode() if text is not None else None for text in (source, target, kind)]
    if _LIBC.mount(*strings, ctypes.c_ulong(flags), options.encode() if options else None):
        raise OSError(ctypes.get_errno(), f"mount {source} on {target}: {os.strerror(ctypes.get_errno())}")


def make_read_only(path: str) -> None:
    """Includes everything that is mounted below."""
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    if _LIBC.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, path.encode(), _AT_RECURSIVE, ctypes.byref(attributes), 32):
        raise OSError(ctypes.get_errno(), f"cannot make {path} read-only: {os.strerror(ctypes.get_errno())}")


def bind(source: str, target: str, *, writable: bool = False) -> None:
    mount(source, target, None, _MS_BIND | _MS_REC)
    if not writable:
        make_read_only(target)


def make_mount_point(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))


class RootFilesystem:
    """`path` is where the new root is mounted until `enter`.

    The container's mounts are made after `enter`: symbolic links on the way to a mount point (/var/run, for
    example) must resolve inside the container, never on the host.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._overlays = 0

    def inside(self, path: str) -> str:
        return os.path.join(self.path, path)

    def build(self) -> None:
        mount("tmpfs", self.path, "tmpfs", 0, "mode=755")
        for name in ("tmp", "run", "dev", SCRATCH):
            os.mkdir(self.inside(name))
            mount("tmpfs", self.inside(name), "tmpfs", 0, "mode=1777" if name == "tmp" else "mode=755")
        self._bind_host_directories()
        self._populate_dev()
        os.mkdir(self.inside("proc"))
        mount("proc", self.inside("proc"), "proc")
        os.mkdir(self.inside("sys"))
        bind("/sys", self.inside("sys"))

    def _bind_host_directories(self) -> None:
        for entry in os.scandir("/"):
            target = self.inside(entry.name)
            if entry.name in _PRIVATE:
                continue
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), target)
            else:
                make_mount_point(entry.path, target)
                bind(entry.path, target)

    def _populate_dev(self) -> None:
        for name in _DEVICES:
            make_mount_point(f"/dev/{name}", self.inside(f"dev/{name}"))
            bind(f"/dev/{name}", self.inside(f"dev/{name}"), writable=True)
        for name, kind, options in (("shm", "tmpfs", "mode=1777"), ("pts", "devpts", "newinstance,ptmxmode=0666")):
            os.mkdir(self.inside(f"dev/{name}"))
            mount(kind, self.inside(f"dev/{name}"), kind, 0, options)
        for name, target in (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0")):
            os.symlink(target, self.inside(f"dev/{name}"))
        for number, name in enumerate(("stdout", "stderr"), start=1):
            os.symlink(f"/proc/self/fd/{number}", self.inside(f"dev/{name}"))

    def enter(self) -> None:
        """The host's root stays reachable at /.host until `close`."""
        old = self.inside(HOST)
        os.mkdir(old)
        if _LIBC.syscall(_SYS_PIVOT_ROOT, self.path.encode(), old.encode()):
            raise OSError(ctypes.get_errno(), f"pivot_root: {os.strerror(ctypes.get_errno())}")
        os.chdir("/")

    def bind_from_host(self, source: str, target: str, *, writable: bool) -> None:
        source = f"/{HOST}{source}"
        try:
            make_mount_point(source, target)
        except OSError:
            self._overlay(os.path.dirname(os.path.realpath(target)))
            make_mount_point(source, target)
        bind(source, target, writable=writable)

    def _overlay(self, directory: str) -> None:
        """Makes the nearest existing parent of a mount point writable by an overlay."""
        while not os.path.isdir(directory):
            directory = os.path.dirname(directory)
        self._overlays += 1
        upper, work = (f"/{SCRATCH}/{kind}{self._overlays}" for kind in ("upper", "work"))
        os.mkdir(upper)
        os.mkdir(work)
        # The overlay hides the mounts below the directory, so they are bound again.
        below = [point for point in _mount_points() if point.startswith(f"{directory}/")]
        mount("overlay", directory, "overlay", 0, f"lowerdir={directory},upperdir={upper},workdir={work}")
        for point in below:
            bind(f"/{HOST}{point}", point)

    def close(self) -> None:
        for name in (HOST, SCRATCH):
            _LIBC.umount2(f"/{name}".encode(), _MNT_DETACH)
            os.rmdir(f"/{name}")


def _mount_points() -> list[str]:
    with open("/proc/self/mountinfo") as table:
        return [line.split()[4] for line in table]


def execute(spec: dict, report: int) -> None:  # type: ignore[type-arg]
    root = RootFilesystem(spec["root"])
    root.build()
    root.enter()
    for source, target, writable in spec["mounts"]:
        root.bind_from_host(source, target, writable=writable)
    root.close()
    socket.sethostname(spec["hostname"])
    os.chdir(spec["directory"])
    environment = spec["environment"]
    program = find(spec["argv"][0], environment.get("PATH", os.defpath))
    os.write(report, STARTED)
    os.execve(program, spec["argv"], environment)


def find(name: str, path: str) -> str:
    """Raises OSError with the message of the real runtime, and what to do about it.

    A program that only an image has at its path (/opt/nccl_tests/build/all_reduce_perf) may have a stand-in in the
    toolbox.
    """
    last = name.rpartition("/")[2]
    if "/" in name:
        candidates, missing = [name, os.path.join(TOOLBOX, last)], "no such file or directory"
    else:
        candidates = [os.path.join(directory, name) for directory in path.split(":")]
        missing = "executable file not found in $PATH"
    for candidate in candidates:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    rule = f'{{command: "*{last}*", argv: [sleep, infinity]}}'
    advice = f"images are not pulled: add a rule for it to the file of `imex up --stand-ins`, such as {rule}"
    raise OSError(f'exec: "{name}": {missing} ({advice})')


def main() -> None:
    report = int(sys.argv[2])
    os.set_inheritable(report, False)
    try:
        with open(sys.argv[1]) as file:
            execute(json.load(file), report)
    except Exception as error:
        os.write(report, str(error).encode())
        os._exit(128)


if __name__ == "__main__":
    main()
