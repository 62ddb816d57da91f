"""Reads a snapshot: from a cluster, with the rights of the reader, or from files.

A list that the reader may not read becomes a missing part. A reader with rights in one namespace gets the
objects of that namespace. Only if no kind at all can be read, reading fails.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from imex_dra.api.meta import Resource
from imex_dra.base.clock import Clock, rfc3339
from imex_dra.base.errors import ApiTerminal, Forbidden, Invalid, NotFound, Unavailable, Unreadable
from imex_dra.diagnose.snapshot import KINDS, Missing, Plain, Snapshot, from_objects, trimmed
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.decoding import decode
from imex_dra.lint.documents import read_source
from imex_dra.lint.manifests import load

_SUFFIXES = {".yaml", ".yml", ".json"}
_objects: msgspec.json.Decoder[Plain] = msgspec.json.Decoder(dict[str, Any])


async def load_cluster(client: Client, namespace: str = "") -> Snapshot:
    """`namespace` is read if the reader may not read all of them. What cannot be decoded is left out and named."""
    return (await read_cluster(client, namespace)).well_formed()


async def read_cluster(client: Client, namespace: str = "") -> Snapshot:
    """With what cannot be decoded, as a bundle should have it: a newer version may decode it."""
    results = await asyncio.gather(*(_load_kind(client, resource, namespace) for resource in KINDS))
    objects = {
        resource.plural: found for resource, (found, _) in zip(KINDS, results, strict=True) if found is not None
    }
    missing = tuple(one for _, one in results if one is not None)
    if not objects:
        raise Forbidden(f"nothing of this cluster can be read: {missing[0].why}")
    return Snapshot(objects, missing, rfc3339(Clock().now()), await _version(client))


async def _version(client: Client) -> str:
    try:
        return await client.server_version()
    except ApiTerminal:
        return ""


async def _load_kind(
    client: Client, resource: Resource[Any], namespace: str
) -> tuple[tuple[Plain, ...] | None, Missing | None]:
    plural = resource.plural
    try:
        return await _list(client, resource, ""), None
    except Forbidden:
        if not (resource.namespaced and namespace):
            return None, Missing(
                plural, f"you may not list {plural}" + (" in all namespaces" if resource.namespaced else "")
            )
    except NotFound:
        return None, Missing(
            plural, f"the cluster has no kind {resource.kind} ({resource.api_version})", not_served=True
        )
    except Invalid as error:
        return None, Missing(plural, str(error))
    try:
        why = f"you may list {plural} only in namespace {namespace}"
        return await _list(client, resource, namespace), Missing(plural, why, namespace=namespace)
    except ApiTerminal:
        return None, Missing(plural, f"you may not list {plural} in namespace {namespace}")


async def _list(client: Client, resource: Resource[Any], namespace: str) -> tuple[Plain, ...]:
    found: list[Plain] = []
    async for page in client.pages(resource, Selection(namespace=namespace)):
        for raw in page.items or ():
            try:
                content = decode(_objects, raw)
            except ValueError as error:
                raise Unavailable(f"list of {resource.plural}: malformed object: {error}") from error
            # The items of a list of one kind have neither kind nor apiVersion.
            found.append(trimmed({"apiVersion": resource.api_version, "kind": resource.kind, **content}))
    return tuple(found)


def load_files(paths: Sequence[Path]) -> Snapshot:
    """Of YAML or JSON files, or directories of them, such as `kubectl get -o yaml` writes. Raises Unreadable."""
    objects: list[Plain] = []
    for path in paths:
        found = load(read_source(str(file), _text(file)) for file in _files(path)).objects
        if not found:
            raise Unreadable(f"{path} has no Kubernetes object, and is no bundle of imex collect")
        objects += [obj.value.plain() for obj in found]
    snapshot = from_objects(objects)
    if not snapshot.objects:
        kinds = ", ".join(resource.plural for resource in KINDS)
        raise Unreadable(f"{', '.join(map(str, paths))}: no object is of a kind that is read: {kinds}")
    return snapshot


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    found = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
    if not found:
        raise Unreadable(f"{path}: the directory has no *.yaml, *.yml or *.json file")
    yield from found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise Unreadable(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Unreadable(f"{file}: the file is not UTF-8") from error
