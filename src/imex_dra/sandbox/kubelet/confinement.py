"""Becomes a container: the last program before its own, in new user, mount, pid, UTS and IPC namespaces.

Run as `python -I -S confinement.py <plan> <descriptor>`, it stands alone: it builds a root of its own (the host's
files read-only, private /tmp, /run, /dev and /proc, what was ordered bound in place), moves into it, and executes
the command. To the descriptor it writes one zero byte just before that, or what went wrong.

A mount point below a read-only directory gets an overlay over the nearest directory that exists.
"""

# pathlib would be a third of the time that this program takes.
# ruff: noqa: PTH102, PTH103, PTH106, PTH112, PTH113, PTH115, PTH118, PTH120, PTH123, PTH211

import ctypes
import json
import os
import socket
import sys

_LIBC = ctypes.CDLL(None, use_errno=True)
_BIND, _REC, _DETACH = 0x1000, 0x4000, 2
_AT_FDCWD, _AT_RECURSIVE, _RDONLY = -100, 0x8000, 1
_SYS_MOUNT_SETATTR = 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
HOST, SCRATCH = ".host", ".scratch"
_OWN = {"tmp", "run", "dev", "proc", "sys", HOST, SCRATCH}
STARTED = b"\0"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    words = [word.encode() if word is not None else None for word in (source, target, kind)]
    if _LIBC.mount(*words, ctypes.c_ulong(flags), options.encode() if options else None):
        raise OSError(ctypes.get_errno(), f"mount {source} on {target}: {os.strerror(ctypes.get_errno())}")


def read_only(path: str) -> None:
    """With everything that is mounted below."""
    attributes = (ctypes.c_uint64 * 4)(_RDONLY, 0, 0, 0)
    if _LIBC.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, path.encode(), _AT_RECURSIVE, ctypes.byref(attributes), 32):
        raise OSError(ctypes.get_errno(), f"{path} can't be made read-only")


def bind(source: str, target: str, *, writable: bool = False) -> None:
    mount(source, target, None, _BIND | _REC)
    if not writable:
        read_only(target)


def make_point(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))


class Root:
    """A new root under construction; `path` is where it is mounted until it is entered.

    What was ordered is placed after that: a symbolic link on the way to a target (/var/run, say) must lead to
    the container's own files, never to the host's.
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
        self._bring_the_host()
        self._fill_dev()
        os.mkdir(self.inside("proc"))
        mount("proc", self.inside("proc"), "proc")
        os.mkdir(self.inside("sys"))
        bind("/sys", self.inside("sys"))

    def _bring_the_host(self) -> None:
        for entry in os.scandir("/"):
            target = self.inside(entry.name)
            if entry.name in _OWN:
                continue
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), target)
            else:
                make_point(entry.path, target)
                bind(entry.path, target)

    def _fill_dev(self) -> None:
        for name in _DEVICES:
            make_point(f"/dev/{name}", self.inside(f"dev/{name}"))
            bind(f"/dev/{name}", self.inside(f"dev/{name}"), writable=True)
        for name, kind, options in (("shm", "tmpfs", "mode=1777"), ("pts", "devpts", "newinstance,ptmxmode=0666")):
            os.mkdir(self.inside(f"dev/{name}"))
            mount(kind, self.inside(f"dev/{name}"), kind, 0, options)
        for name, target in (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0")):
            os.symlink(target, self.inside(f"dev/{name}"))
        for number, name in enumerate(("stdout", "stderr"), start=1):
            os.symlink(f"/proc/self/fd/{number}", self.inside(f"dev/{name}"))

    def enter(self) -> None:
        """The host stays in reach under /.host until `close`."""
        old = self.inside(HOST)
        os.mkdir(old)
        if _LIBC.syscall(_PIVOT_ROOT, self.path.encode(), old.encode()):
            raise OSError(ctypes.get_errno(), f"pivot_root: {os.strerror(ctypes.get_errno())}")
        os.chdir("/")

    def place(self, source: str, target: str, *, writable: bool) -> None:
        source = f"/{HOST}{source}"
        try:
            make_point(source, target)
        except OSError:
            self._open_up(os.path.dirname(os.path.realpath(target)))
            make_point(source, target)
        bind(source, target, writable=writable)

    def _open_up(self, directory: str) -> None:
        """Lays an overlay over the nearest directory that exists, with what is mounted below it."""
        while not os.path.isdir(directory):
            directory = os.path.dirname(directory)
        self._overlays += 1
        upper, work = (f"/{SCRATCH}/{kind}{self._overlays}" for kind in ("upper", "work"))
        os.mkdir(upper)
        os.mkdir(work)
        below = [point for point in _mount_points() if point.startswith(f"{directory}/")]
        mount("overlay", directory, "overlay", 0, f"lowerdir={directory},upperdir={upper},workdir={work}")
        for point in below:
            bind(f"/{HOST}{point}", point)

    def close(self) -> None:
        for name in (HOST, SCRATCH):
            _LIBC.umount2(f"/{name}".encode(), _DETACH)
            os.rmdir(f"/{name}")


def _mount_points() -> list[str]:
    with open("/proc/self/mountinfo") as table:
        return [line.split()[4] for line in table]


def become(plan: dict, descriptor: int) -> None:  # type: ignore[type-arg]
    root = Root(plan["root"])
    root.build()
    root.enter()
    for source, target, writable in plan["binds"]:
        root.place(source, target, writable=writable)
    root.close()
    socket.sethostname(plan["hostname"])
    os.chdir(plan["directory"])
    environment = plan["environment"]
    program = find(plan["argv"][0], environment.get("PATH", os.defpath))
    os.write(descriptor, STARTED)
    os.execve(program, plan["argv"], environment)


def find(name: str, path: str) -> str:
    """In the runtime's words if there is none."""
    if "/" in name:
        candidates, missing = [name], "no such file or directory"
    else:
        candidates = [os.path.join(directory, name) for directory in path.split(":")]
        missing = "executable file not found in $PATH"
    for candidate in candidates:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    raise OSError(f'exec: "{name}": {missing}')


def main() -> None:
    descriptor = int(sys.argv[2])
    os.set_inheritable(descriptor, False)
    try:
        with open(sys.argv[1]) as file:
            become(json.load(file), descriptor)
    except Exception as error:
        os.write(descriptor, str(error).encode())
        os._exit(128)


if __name__ == "__main__":
    main()
