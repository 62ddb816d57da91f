"""`imex preflight --node`: the life of the check pod. The client is a stand-in."""

from dataclasses import dataclass, field

import msgspec
import pytest
from click.testing import CliRunner

from imex_dra.api.meta import Key, Resource
from imex_dra.api.views import PodStatus
from imex_dra.base.errors import Unreadable
from imex_dra.cli import imex
from imex_dra.cli.nodecheck import Pod, run_check
from imex_dra.diagnose.nodecheck import check_pod
from imex_dra.kube.client import encode

MANIFEST = check_pod("r0-n01", "imex-dra", "busybox:1")


@dataclass
class StandIn:
    phases: list[str]
    log: bytes = b"ok\tfine\nfailed\tnot \x1b[2J fine\ndone\t\n"
    calls: list[str] = field(default_factory=list)

    async def create(self, resource: Resource[Pod], obj: Pod) -> Pod:
        self.calls.append("create")
        assert msgspec.json.decode(encode(resource, obj)) == MANIFEST
        return obj

    async def get(self, resource: Resource[Pod], key: Key) -> Pod:
        self.calls.append("get")
        phase = self.phases.pop(0) if len(self.phases) > 1 else self.phases[0]
        return msgspec.structs.replace(msgspec.convert(MANIFEST, Pod), status=PodStatus(phase=phase))

    async def pod_log(self, key: Key, container: str, *, lines: int, limit: int) -> bytes:
        self.calls.append("log")
        return self.log

    async def delete(self, resource: Resource[Pod], obj: Pod) -> None:
        self.calls.append("delete")


async def test_the_pod_is_created_awaited_read_and_deleted() -> None:
    client = StandIn(["Pending", "Running", "Succeeded"])
    checks = await run_check(client, MANIFEST, pause=0)
    assert client.calls == ["create", "get", "get", "get", "log", "delete"]
    assert [(str(check.verdict), check.sentence) for check in checks] == [
        ("ok", "fine"),
        ("failed", "not ?[2J fine"),
    ]


async def test_a_pod_that_does_not_start_is_deleted_and_named() -> None:
    client = StandIn(["Pending"])
    with pytest.raises(
        Unreadable, match=r"pod imex-dra/imex-node-check-.* on node r0-n01 has not ended .* is Pending"
    ):
        await run_check(client, MANIFEST, seconds=0, pause=0)
    assert client.calls[-1] == "delete"


async def test_a_log_without_its_end_is_an_error_and_the_pod_is_deleted() -> None:
    client = StandIn(["Failed"], b"sh: not found\n")
    with pytest.raises(Unreadable, match="ended too early"):
        await run_check(client, MANIFEST, pause=0)
    assert client.calls[-1] == "delete"


def test_node_and_from_exclude_each_other() -> None:
    done = CliRunner().invoke(imex, ["preflight", "--node", "r0-n01", "--from", "."], prog_name="imex")
    assert done.exit_code == 2
    assert "--node needs a cluster" in done.stderr
