"""A support bundle: a snapshot and logs of the driver in one archive, without secrets.

imex-bundle/snapshot.json          version, time, what is missing
imex-bundle/objects/<plural>.json  a list of objects
imex-bundle/logs/<pod>/<container>.log
"""

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from imex_dra import __version__
from imex_dra.api.names import NAMESPACE
from imex_dra.api.views import PODS
from imex_dra.base.errors import ImexError, Unreadable
from imex_dra.diagnose.pods import ClusterPod
from imex_dra.diagnose.redaction import redacted, redacted_text
from imex_dra.diagnose.snapshot import BY_PLURAL, Missing, Plain, Snapshot
from imex_dra.kube.client import Client

_ROOT = "imex-bundle"
_MAX_FILE = 1 << 30
"""Bytes of one file when it is unpacked: an archive may come from anywhere."""
_LOG_LINES, _LOG_BYTES = 5000, 2_000_000


class _Contents(Struct, rename="camel"):
    version: str
    taken_at: str = ""
    missing: tuple[Missing, ...] = ()
    kubernetes: str = ""


def pack(snapshot: Snapshot, logs: Mapping[str, str]) -> bytes:
    """Logs by `<pod>/<container>`. Everything is redacted here, so that nothing else can get into a bundle."""
    contents = _Contents(__version__, snapshot.taken_at, snapshot.missing, snapshot.version)
    files = {"snapshot.json": msgspec.json.encode(contents)}
    for plural, objects in snapshot.objects.items():
        files[f"objects/{plural}.json"] = msgspec.json.format(msgspec.json.encode([redacted(o) for o in objects]))
    for name, text in logs.items():
        files[f"logs/{name}.log"] = redacted_text(text).encode()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"{_ROOT}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return archive.getvalue()


def is_bundle(path: Path) -> bool:
    return path.is_file() and tarfile.is_tarfile(path)


def unpack(path: Path) -> Snapshot:
    """Raises Unreadable."""
    try:
        with tarfile.open(path, mode="r:*") as tar:
            files = dict(_read(tar))
        contents = msgspec.json.decode(files[f"{_ROOT}/snapshot.json"], type=_Contents)
        objects = {
            plural: msgspec.json.decode(files[name], type=tuple[Plain, ...])
            for plural in BY_PLURAL
            if (name := f"{_ROOT}/objects/{plural}.json") in files
        }
    except KeyError as error:
        raise Unreadable(f"{path}: the archive is no bundle of imex collect: it has no {error.args[0]}") from error
    except (OSError, tarfile.TarError, ValueError, EOFError) as error:
        raise Unreadable(f"{path}: the bundle cannot be read: {error}") from error
    return Snapshot(objects, contents.missing, contents.taken_at, contents.kubernetes)


def _read(tar: tarfile.TarFile) -> Iterable[tuple[str, bytes]]:
    """Only what a snapshot needs; nothing is written to disk."""
    for member in tar:
        if member.isfile() and member.name.endswith(".json"):
            if member.size > _MAX_FILE:
                raise ValueError(f"{member.name} is too large")
            content = tar.extractfile(member)
            yield member.name, content.read() if content else b""


async def driver_logs(client: Client, snapshot: Snapshot) -> tuple[dict[str, str], list[str]]:
    """Logs of the pods in the driver's namespace, and sentences on those that could not be read."""
    logs, problems = {}, []
    for plain in snapshot.of(PODS.plural):
        pod = ClusterPod(plain)
        if pod.namespace != NAMESPACE:
            continue
        for container in pod.containers:
            try:
                text = await client.pod_log(pod.key, container.name, lines=_LOG_LINES, limit=_LOG_BYTES)
            except ImexError as error:
                problems.append(f"log of {container.name} in {pod.key}: {error}")
            else:
                logs[f"{pod.name}/{container.name}"] = text.decode(errors="replace")
    return logs, problems
