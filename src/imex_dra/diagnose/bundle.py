"""A support bundle: a snapshot, and logs and answers of nvidia-imex-ctl, in one archive without secrets.

imex-bundle/snapshot.json          version, time, what is missing
imex-bundle/objects/<plural>.json  a list of objects
imex-bundle/logs/<pod>/<container>.log
imex-bundle/nvidia-imex-ctl/<node>.txt
"""

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from imex_dra import __version__
from imex_dra.base.errors import Unreadable
from imex_dra.diagnose.redaction import redacted, redacted_text
from imex_dra.diagnose.snapshot import BY_PLURAL, Missing, Plain, Snapshot

_ROOT = "imex-bundle"
_MAX_FILE = 1 << 30
"""Bytes of one file when it is unpacked: an archive may come from anywhere."""


class _Contents(Struct, rename="camel"):
    version: str
    taken_at: str = ""
    missing: tuple[Missing, ...] = ()
    kubernetes: str = ""


def pack(snapshot: Snapshot, texts: Mapping[str, str]) -> bytes:
    """Texts by file name. Everything is redacted here, so that nothing else can get into a bundle."""
    contents = _Contents(__version__, snapshot.taken_at, snapshot.missing, snapshot.version)
    files = {"snapshot.json": msgspec.json.encode(contents)}
    for plural, objects in snapshot.objects.items():
        files[f"objects/{plural}.json"] = msgspec.json.format(msgspec.json.encode([redacted(o) for o in objects]))
    for name, text in texts.items():
        files[name] = redacted_text(text).encode()
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
    return Snapshot(objects, contents.missing, contents.taken_at, contents.kubernetes).well_formed()


def _read(tar: tarfile.TarFile) -> Iterable[tuple[str, bytes]]:
    """Only what a snapshot needs; nothing is written to disk."""
    for member in tar:
        if member.isfile() and member.name.endswith(".json"):
            if member.size > _MAX_FILE:
                raise ValueError(f"{member.name} is too large")
            content = tar.extractfile(member)
            yield member.name, content.read() if content else b""
