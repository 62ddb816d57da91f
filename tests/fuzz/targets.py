"""Every decoder of the driver that reads what others wrote. A target raises only if the decoder is wrong."""

import atexit
import hashlib
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic

import httpx2
import msgspec
import yaml
from msgspec import Raw

from imex_dra.api.meta import Key, Resource, T
from imex_dra.api.nvlinknode import NVLINK_NODES
from imex_dra.api.opaque import ComputeDomainChannelConfig, named_domain, parse_channel_config
from imex_dra.api.views import RESOURCE_CLAIMS, Allocation, ResourceClaim
from imex_dra.base.errors import ImexError, Rejected, Undecodable, Unreadable
from imex_dra.controller.caches import Caches
from imex_dra.dra.plugin import ClaimId
from imex_dra.kube.client import Client, Page
from imex_dra.kube.decoding import ObjectDecoder, decode
from imex_dra.kube.reflector import Reflector
from imex_dra.kube.store import Store
from imex_dra.lint.documents import read_source
from imex_dra.lint.manifests import load
from imex_dra.lint.rules import RULES, lint
from imex_dra.node.checkpoint import Checkpoint
from imex_dra.node.claim import parse_claim
from tests.controller.claims import claim as allocated
from tests.controller.claims import configuration
from tests.controller.partition import nvlink_node
from tests.fuzz.mutations import mutated
from tests.node.disk import NodeDisk, prepared_claim

CLAIM = ClaimId("team", "c", "uid-c")
CONFIG = msgspec.json.encode(ComputeDomainChannelConfig(domain_id="uid-job"))
CLAIM_JSON = msgspec.json.encode(
    allocated("c", configuration("uid-job", "channel"), configuration("x", driver="gpu.example.com"), pods=("p",))
)
NODE_JSON = msgspec.json.encode(nvlink_node("n1"))
PLAIN = b'{"metadata":{"name":"plain","namespace":"team","uid":"plain","resourceVersion":"99999999999999999999"}}'

Target = Callable[[bytes], None]


class WatchTarget(Generic[T]):
    """Whatever a watch delivers, the next object is applied to the store, or the watch is given up in order."""

    def __init__(self, resource: Resource[T], new_store: Callable[[], Store[T]], *objects: bytes) -> None:
        self._resource = resource
        self._new_store = new_store
        self._messages = (
            *(b'{"type":"MODIFIED","object":%s}' % obj for obj in objects),
            *(b'{"type":"DELETED","object":%s}' % obj for obj in objects),
            b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7","annotations":{"a":"b"}}}}',
            b'{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"m","details":{"causes":[]}}}',
        )

    def __call__(self, data: bytes) -> None:
        store = self._new_store()
        reflector = Reflector(_CLIENT, self._resource, store)
        line = mutated(self._messages, data).replace(b"\n", b" ")
        try:
            reflector._apply_lines([line])
        except (ImexError, ValueError):
            return  # the reflector reconnects
        reflector._apply_lines([b'{"type":"ADDED","object":%s}' % PLAIN])
        assert store.get(Key("team", "plain")) is not None


_CLIENT = Client(httpx2.AsyncClient(headers={"User-Agent": "fuzz/0"}))


def page(data: bytes) -> None:
    """A page is refused as a whole, or every object of it is decoded or refused by itself."""
    body = b'{"metadata":{"resourceVersion":"7","continue":""},"items":[%s,%s]}' % (CLAIM_JSON, PLAIN)
    with suppress(ValueError):
        found: Page[ResourceClaim] = decode(_PAGES, mutated((body,), data))
        for raw in found.items or ():
            with suppress(Undecodable):
                _CLAIMS.decode(raw)


_PAGES: msgspec.json.Decoder[Page[ResourceClaim]] = msgspec.json.Decoder(Page)
_CLAIMS = ObjectDecoder(RESOURCE_CLAIMS)


def claim(data: bytes) -> None:
    """A claim that is decoded is parsed or rejected, and names only ComputeDomains of its allocation."""
    try:
        found = _CLAIMS.decode(mutated((CLAIM_JSON,), data))
    except Undecodable:
        return
    assert all(isinstance(uid, str) and uid for uid in found.domain_uids)
    assert isinstance(found.status.allocation, Allocation | None)
    with suppress(Rejected):
        request = parse_claim(CLAIM, found, "n1")
        assert request.domain_uid in found.domain_uids, "the controller does not know what the node prepares"


def config(data: bytes) -> None:
    """What the node accepts names the same ComputeDomain for the controller."""
    parameters = Raw(mutated((CONFIG,), data))
    name = named_domain(parameters)
    with suppress(ValueError):
        assert parse_channel_config(parameters).domain_id == name


class DiskTarget:
    """The checkpoint can always be read: it is rebuilt from the CDI specs if it must be."""

    def __init__(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="imex-fuzz-")
        atexit.register(directory.cleanup)
        self._disk = NodeDisk(Path(directory.name))
        self._disk.add(prepared_claim("u1"))
        self._file = self._disk.checkpoint.read_bytes()
        self._checkpoint = msgspec.json.encode(self._disk.load_checkpoint())
        self._spec = self._disk.spec_path("u1").read_bytes()

    def read(self, checkpoint: bytes, spec: bytes) -> None:
        self._disk.checkpoint.write_bytes(checkpoint)
        self._disk.spec_path("u1").write_bytes(spec)
        assert isinstance(self._disk.prepared_claims().read(), Checkpoint)

    def checkpoint(self, data: bytes) -> None:
        # A wrong checksum would hide the payload from the fuzzer.
        payload = mutated((self._checkpoint,), data).decode(errors="replace")
        checksum = hashlib.sha256(payload.encode()).hexdigest()
        envelope = msgspec.json.encode({"version": 1, "checksum": checksum, "payload": payload})
        self.read(envelope, self._spec)

    def envelope(self, data: bytes) -> None:
        self.read(mutated((self._file,), data), self._spec)

    def spec(self, data: bytes) -> None:
        self.read(b"unreadable", mutated((self._spec,), data))


MANIFESTS = tuple(
    msgspec.json.encode({"kind": "List", "items": list(yaml.safe_load_all(rule.bad))}) for rule in RULES
)


def manifest(data: bytes) -> None:
    text = mutated(MANIFESTS, data).decode(errors="surrogateescape")
    with suppress(Unreadable):
        lint(load([read_source("f", text)]))


def targets() -> dict[str, Target]:
    disk = DiskTarget()
    return {
        "watch-claims": WatchTarget(RESOURCE_CLAIMS, lambda: Caches().claims, CLAIM_JSON),
        "watch-nodes": WatchTarget(NVLINK_NODES, lambda: Caches().nvlink_nodes, NODE_JSON),
        "page": page,
        "claim": claim,
        "config": config,
        "checkpoint": disk.checkpoint,
        "checkpoint-file": disk.envelope,
        "cdi-spec": disk.spec,
        "manifest": manifest,
    }
