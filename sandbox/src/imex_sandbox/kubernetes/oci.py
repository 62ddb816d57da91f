"""Writes container images as OCI archives, without a container tool.

Owners, times and order are fixed, so that the same content always results in the same archive. A file appears
complete or not at all.
"""

import hashlib
import io
import json
import platform
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

_MEDIA = "application/vnd.oci.image"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PATH = "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


class Image(NamedTuple):
    name: str
    layers: Sequence[Path]
    entrypoint: Sequence[str]


class Blob(NamedTuple):
    content: Path | bytes
    media_type: str

    @property
    def digest(self) -> str:
        if isinstance(self.content, bytes):
            return hashlib.sha256(self.content).hexdigest()
        with self.content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @property
    def descriptor(self) -> dict[str, Any]:
        size = len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size
        return {"mediaType": f"{_MEDIA}.{self.media_type}", "digest": f"sha256:{self.digest}", "size": size}


def write_layer(path: Path, files: Mapping[str, Path], links: Mapping[str, str] | None = None) -> Path:
    """`files` maps paths in the image to files or whole directories; `links` maps paths to link targets."""
    with _atomic_write(path) as part, tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as layer:
        for name, source in sorted(files.items()):
            layer.add(source, name.lstrip("/"), filter=_normalize)
        for name, target in sorted((links or {}).items()):
            link = tarfile.TarInfo(name.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, target
            layer.addfile(link)
    return path


def write(path: Path, image: Image) -> Path:
    layers = [Blob(layer, "layer.v1.tar") for layer in image.layers]
    config = Blob(_json(_config(image, layers)), "config.v1+json")
    manifest = Blob(_json(_manifest(config, layers)), "manifest.v1+json")
    with _atomic_write(path) as part, tarfile.open(part, "w") as archive:
        for blob in (*layers, config, manifest):
            _add(archive, f"blobs/sha256/{blob.digest}", blob.content)
        _add(archive, "index.json", _json(_index(image.name, manifest)))
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
    return path


@contextmanager
def _atomic_write(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".part-") as temporary:
        yield Path(temporary) / path.name
        (Path(temporary) / path.name).rename(path)


def _config(image: Image, layers: Sequence[Blob]) -> dict[str, Any]:
    return {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": list(image.entrypoint), "Env": [_PATH]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
    }


def _manifest(config: Blob, layers: Sequence[Blob]) -> dict[str, Any]:
    return {
        "schemaVersion": 2,
        "mediaType": f"{_MEDIA}.manifest.v1+json",
        "config": config.descriptor,
        "layers": [layer.descriptor for layer in layers],
    }


def _index(name: str, manifest: Blob) -> dict[str, Any]:
    named = {**manifest.descriptor, "annotations": {"io.containerd.image.name": name}}
    return {"schemaVersion": 2, "mediaType": f"{_MEDIA}.index.v1+json", "manifests": [named]}


def _add(archive: tarfile.TarFile, name: str, content: Path | bytes) -> None:
    if isinstance(content, Path):
        archive.add(content, name, filter=_normalize)
    else:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _normalize(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry
