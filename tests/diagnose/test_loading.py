"""Snapshots from a cluster with limited rights, and from files."""

from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from imex_dra.base.errors import Forbidden, Unavailable, Unreadable
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.loading import load_cluster, load_files, read_cluster
from imex_dra.diagnose.rules import diagnose
from imex_dra.diagnose.snapshot import KINDS, Plain, from_objects
from imex_dra.kube.backoff import Backoff
from imex_dra.kube.client import Client
from tests.diagnose.healthy import Broken


class Api:
    """Answers lists of the objects of a cluster; some are forbidden, or not served."""

    def __init__(self, broken: Broken, **codes: int) -> None:
        self.broken = broken
        self.codes = codes
        self.only_in = ""
        self.logs: dict[str, str] = {}
        self.pages: dict[str, str] = {}
        """By `<name>:<port>` of a pod or node."""

    def client(self) -> Client:
        transport = httpx2.MockTransport(self.respond)
        http = httpx2.AsyncClient(
            transport=transport, base_url="http://fake", headers={"User-Agent": "imex-test/0"}
        )
        return Client(http, backoff=Backoff(0.001, 0.001))

    async def respond(self, request: httpx2.Request) -> httpx2.Response:
        parts = request.url.path.split("/")
        if parts[-1] == "version":
            return httpx2.Response(200, json={"gitVersion": self.broken.version})
        if parts[-1] == "log":
            text = self.logs.get(parts[-2])
            return httpx2.Response(200, text=text) if text else httpx2.Response(400, json={"message": "no log"})
        if parts[-2:] == ["proxy", "imex"]:
            text, code = self.pages.get(parts[-3]), self.codes.get("proxy", 503)
            return (
                httpx2.Response(200, text=text) if text else httpx2.Response(code, json={"message": "no endpoint"})
            )
        plural, namespace = parts[-1], parts[-2] if parts[-3] == "namespaces" else ""
        code = self.codes.get(plural, 200)
        if code == 403 and self.only_in and namespace == self.only_in:
            code = 200
        if code != 200:
            return httpx2.Response(code, json={"code": code, "message": "no", "reason": "Forbidden"})
        found = [self.item(o) for o in self.broken.objects[plural] if self.is_in(o, namespace)]
        return httpx2.Response(200, json={"metadata": {}, "items": found})

    @staticmethod
    def is_in(obj: dict[str, Any], namespace: str) -> bool:
        return namespace in ("", obj["metadata"].get("namespace"))

    @staticmethod
    def item(obj: dict[str, Any]) -> dict[str, Any]:
        """As in a list of one kind: without kind, and with managedFields."""
        metadata = {**obj["metadata"], "managedFields": [{"manager": "x"}]}
        return {
            key: value for key, value in {**obj, "metadata": metadata}.items() if key not in ("kind", "apiVersion")
        }


async def test_everything_is_read_and_managed_fields_are_left_out() -> None:
    client = Api(Broken()).client()
    snapshot = await load_cluster(client)
    await client.close()
    assert set(snapshot.objects) == {resource.plural for resource in KINDS}
    assert snapshot.missing == ()
    assert snapshot.taken_at
    assert snapshot.version == "v1.36.4"
    (domain,) = snapshot.of("computedomains")
    assert (domain["kind"], "managedFields" in domain["metadata"]) == ("ComputeDomain", False)
    assert [f.id for f in diagnose(Cluster(snapshot))] == ["IMEX204"]  # the Lease of the fixture is of another day


async def test_a_forbidden_list_is_a_missing_part_with_a_sentence() -> None:
    client = Api(Broken(), nodes=403, pods=403).client()
    snapshot = await load_cluster(client)
    await client.close()
    assert [missing.why for missing in snapshot.missing] == [
        "you may not list pods in all namespaces",
        "you may not list nodes",
    ]
    assert not snapshot.has("nodes")
    assert snapshot.has("nvlinknodes")


async def test_a_reader_of_one_namespace_gets_its_objects() -> None:
    api = Api(Broken(), pods=403)
    api.only_in = "team"
    client = api.client()
    snapshot = await load_cluster(client, "team")
    await client.close()
    assert len(snapshot.of("pods")) == 2
    assert [missing.why for missing in snapshot.missing] == ["you may list pods only in namespace team"]
    assert not snapshot.has("pods")


async def test_an_object_of_a_newer_driver_is_left_out_and_named_but_collected() -> None:
    broken = Broken()
    broken.get("nvlinknodes", "r0-n00")["status"]["imexState"] = "HIBERNATING"
    client = Api(broken).client()
    snapshot, everything = await load_cluster(client), await read_cluster(client)
    await client.close()
    assert len(snapshot.of("nvlinknodes")) == 3
    assert snapshot.sentences[0].startswith("1 of 4 nvlinknodes cannot be read: NVLinkNode r0-n00 cannot be")
    assert "IMEX302" not in [finding.id for finding in diagnose(Cluster(snapshot))]
    assert len(everything.of("nvlinknodes")) == 4
    assert everything.missing == ()


async def test_a_kind_that_is_not_served_is_told_apart() -> None:
    client = Api(Broken(), computedomains=404).client()
    snapshot = await load_cluster(client)
    await client.close()
    assert [missing.not_served for missing in snapshot.missing] == [True]
    assert "IMEX201" in [finding.id for finding in diagnose(Cluster(snapshot))]


async def test_it_fails_if_nothing_can_be_read() -> None:
    client = Api(Broken(), **{resource.plural: 403 for resource in KINDS}).client()
    with pytest.raises(Forbidden, match=r"nothing of this cluster can be read: you may not list pods"):
        await load_cluster(client)
    await client.close()


async def test_an_api_server_that_does_not_answer_is_an_error_not_a_missing_part() -> None:
    client = Api(Broken(), nodes=500).client()
    with pytest.raises(Unavailable):
        await load_cluster(client)
    await client.close()


def test_files_are_read_as_kubectl_writes_them(tmp_path: Path) -> None:
    broken = Broken()
    (tmp_path / "a").mkdir()
    pods = {"apiVersion": "v1", "kind": "List", "items": broken.objects["pods"]}
    (tmp_path / "a/pods.yaml").write_text(yaml.safe_dump(pods))
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump_all(broken.objects["nodes"]))
    snapshot = load_files([tmp_path])
    assert (len(snapshot.of("pods")), len(snapshot.of("nodes"))) == (2, 4)
    assert "the files contain no computedomains" in [missing.why for missing in snapshot.missing]


def test_events_of_both_apis_are_events() -> None:
    events: list[Plain] = [
        {"apiVersion": api, "kind": "Event", "metadata": {}} for api in ("v1", "events.k8s.io/v1")
    ]
    assert len(from_objects(events).of("events")) == 2


def test_a_file_that_is_missing_or_no_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="No such file"):
        load_files([tmp_path / "none.yaml"])
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(Unreadable, match=r"bad\.yaml:2"):
        load_files([tmp_path / "bad.yaml"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(Unreadable, match="has no"):
        load_files([tmp_path / "empty"])
