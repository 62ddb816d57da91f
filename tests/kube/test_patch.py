"""Patches: minimal, and without effect on fields that the view does not have."""

from typing import Annotated, Any

import jsonpatch
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, structs

from imex_dra.api.meta import AnnotatedMeta, Key, ObjectMeta, View
from imex_dra.api.nvlinkpartition import (
    NVLINK_PARTITIONS,
    Member,
    MemberState,
    NVLinkPartition,
    NVLinkPartitionSpec,
    NVLinkPartitionStatus,
)
from imex_dra.api.views import NAMESPACES
from imex_dra.base.errors import Conflict, Invalid
from imex_dra.kube.client import Client
from imex_dra.kube.patch import apply_fields, covers, json_patch, patch_changes
from tests.conftest import CRDS
from tests.kube.conftest import ApiServer


class Entry(View, frozen=True):
    name: str
    size: int = 0


class Inner(View, frozen=True):
    number: int = 0
    entries: Annotated[tuple[Entry, ...], Meta(extra_json_schema={"x-kubernetes-list-map-keys": ["name"]})] = ()
    labels: dict[str, str] = {}
    inner: "Inner | None" = None


class Thing(View, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: Inner = Inner()


NAMES = st.sampled_from("abc")
ENTRIES = st.lists(st.builds(Entry, name=NAMES, size=st.integers(0, 2)), unique_by=lambda e: e.name).map(tuple)
LABELS = st.dictionaries(NAMES, st.sampled_from("xy"))
FLAT = st.builds(Inner, number=st.integers(0, 2), entries=ENTRIES, labels=LABELS)
THINGS = st.builds(
    Thing,
    status=st.builds(
        Inner, number=st.integers(0, 2), entries=ENTRIES, labels=LABELS, inner=st.one_of(st.none(), FLAT)
    ),
)


def with_unknown_fields(value: Any) -> Any:
    """The same object as a newer version would have written it."""
    if isinstance(value, dict):
        return {"unknown": "kept", **{name: with_unknown_fields(content) for name, content in value.items()}}
    return [with_unknown_fields(item) for item in value] if isinstance(value, list) else value


@given(before=THINGS, after=THINGS)
def test_the_patch_turns_one_version_into_the_other(before: Thing, after: Thing) -> None:
    live = msgspec.json.decode(msgspec.json.encode(before))
    operations = json_patch(before, after)
    assert msgspec.convert(jsonpatch.apply_patch(live, operations), Thing) == after
    assert (operations == []) == (before == after)


@given(before=THINGS, after=THINGS)
def test_unknown_fields_are_preserved(before: Thing, after: Thing) -> None:
    live = with_unknown_fields(msgspec.json.decode(msgspec.json.encode(before)))
    result = jsonpatch.apply_patch(live, json_patch(before, after))
    assert result["unknown"] == "kept"
    kept = {entry["name"] for entry in result.get("status", {}).get("entries", []) if "unknown" in entry}
    assert kept == {e.name for e in before.status.entries} & {e.name for e in after.status.entries}


@given(entries=st.lists(st.integers(0, 9), unique=True, min_size=2), data=st.data())
def test_an_entry_that_moves_is_not_written_again(entries: list[int], data: st.DataObject) -> None:
    before = Thing(status=Inner(entries=tuple(Entry(str(n)) for n in entries)))
    order = data.draw(st.permutations(before.status.entries))
    operations = json_patch(before, Thing(status=Inner(entries=tuple(order))))
    assert {operation["op"] for operation in operations} <= {"move"}


def test_one_changed_field_of_an_entry_is_one_operation() -> None:
    before = Inner(entries=(Entry("a"), Entry("b", 1)))
    after = Inner(entries=(Entry("a"), Entry("b", 2)))
    assert json_patch(Thing(status=before), Thing(status=after)) == [
        {"op": "add", "path": "/status/entries/1/size", "value": 2}
    ]


def test_covers_compares_only_the_given_fields() -> None:
    live = {"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"x": [1]}}
    assert covers(live, {"metadata": {"labels": {"a": "1"}}})
    assert covers(live, {"spec": {"x": [1]}})
    assert not covers(live, {"metadata": {"labels": {"a": "2"}}})
    assert not covers(live, {"spec": {"x": [1, 2]}})
    assert not covers(live, {"status": {}})


async def partition(client: Client, name: str) -> NVLinkPartition:
    spec = NVLinkPartitionSpec(max_nodes=24, name_format="imex-0a1b2c3d-%03d")
    return await client.create(NVLINK_PARTITIONS, NVLinkPartition(AnnotatedMeta(name=name), spec))


def with_members(live: NVLinkPartition, *members: Member) -> NVLinkPartition:
    return structs.replace(live, status=structs.replace(live.status, members=members))


async def test_on_the_server_an_outdated_write_conflicts_and_an_empty_one_is_not_sent(client: Client) -> None:
    live = await partition(client, "versions.1")
    member = Member("n0", 0, "127.0.0.1", MemberState.JOINING)
    after = await patch_changes(client, NVLINK_PARTITIONS, live, with_members(live, member), subresource="status")
    assert after.status.members == (member,)
    again = await patch_changes(
        client, NVLINK_PARTITIONS, after, with_members(after, member), subresource="status"
    )
    assert again.metadata.resource_version == after.metadata.resource_version
    with pytest.raises(Conflict, match=r"versions\.1"):
        await patch_changes(client, NVLINK_PARTITIONS, live, with_members(live, member), subresource="status")
    bare = structs.replace(after, status=NVLinkPartitionStatus())
    assert (
        await patch_changes(client, NVLINK_PARTITIONS, after, bare, subresource="status")
    ).status == bare.status


async def test_on_the_server_an_invalid_object_is_not_taken_for_a_conflict(client: Client) -> None:
    live = await partition(client, "invalid.1")
    member = Member("n0", -7, "127.0.0.1", MemberState.JOINING)
    with pytest.raises(Invalid, match=r"status\.members\[0\]\.index"):
        await patch_changes(client, NVLINK_PARTITIONS, live, with_members(live, member), subresource="status")


async def test_on_the_server_fields_of_a_newer_crd_are_preserved(api_server: ApiServer, client: Client) -> None:
    crd = yaml.safe_load((CRDS / "imex-dra.io_nvlinkpartitions.yaml").read_text())
    newer = msgspec.json.decode(msgspec.json.encode(crd))
    status = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    status["members"]["items"]["properties"]["rail"] = {"type": "string"}
    status["color"] = {"type": "string"}
    api_server.kubectl.apply(newer)
    try:
        live = await partition(client, "newer.1")
        member = {"node": "n0", "index": 0, "address": "127.0.0.1", "state": "Joining", "rail": "left"}
        path = Key("", "newer.1")
        patch = {"status": {"members": [member], "color": "green"}}
        live = await client.patch(NVLINK_PARTITIONS, path, patch, subresource="status")
        ready = Member("n0", 0, "127.0.0.1", MemberState.READY)
        joining = Member("n1", 1, "127.0.0.2", MemberState.JOINING)
        after = with_members(live, ready, joining)
        await patch_changes(client, NVLINK_PARTITIONS, live, after, subresource="status")
        raw = msgspec.json.decode(await client.get_raw(NVLINK_PARTITIONS, path))
        assert raw["status"]["color"] == "green"
        assert raw["status"]["members"][0] == {**member, "state": "Ready"}
        assert raw["status"]["members"][1]["node"] == "n1"
    finally:
        api_server.kubectl.apply(crd)


async def test_on_the_server_apply_owns_its_fields_and_skips_unchanged_ones(
    client: Client, namespace: str
) -> None:
    live = await client.get(NAMESPACES, Key("", namespace))
    labels = {"metadata": {"labels": {"nvidia.com/gpu.clique": "x.1"}}}
    after = await apply_fields(client, NAMESPACES, live, labels)
    assert after.metadata.labels["nvidia.com/gpu.clique"] == "x.1"
    again = await apply_fields(client, NAMESPACES, after, labels)
    assert again.metadata.resource_version == after.metadata.resource_version
    raw = msgspec.json.decode(await client.get_raw(NAMESPACES, Key("", namespace)))
    owners = [entry["manager"] for entry in raw["metadata"]["managedFields"] if entry["operation"] == "Apply"]
    assert owners == ["imex-controller"]


async def test_on_the_server_apply_does_not_change_a_value_that_somebody_else_set(
    client: Client, namespace: str
) -> None:
    key, label = Key("", namespace), "nvidia.com/gpu.clique"
    theirs = {"metadata": {"labels": {label: "theirs"}}}
    live = await client.patch(NAMESPACES, key, theirs, fieldManager="somebody-else")
    with pytest.raises(Conflict, match="somebody-else"):
        await apply_fields(client, NAMESPACES, live, {"metadata": {"labels": {label: "ours"}}})
    assert (await client.get(NAMESPACES, key)).metadata.labels[label] == "theirs"
