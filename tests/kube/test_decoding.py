"""Decoding hostile objects: what is repaired, what is refused, and what a cache keeps."""

import json
import tracemalloc
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from imex_dra.api.meta import Key
from imex_dra.api.names import DRIVER
from imex_dra.api.views import RESOURCE_CLAIMS, ResourceClaim
from imex_dra.base.errors import Undecodable
from imex_dra.kube.client import Page
from imex_dra.kube.decoding import MAX_DEPTH, ObjectDecoder, decode, identity_of, repaired
from tests.kube.hostile import DEEP_MANAGED_FIELDS, HOSTILE_JSON, NOT_STORED, STORED, claim

ANYTHING = msgspec.json.Decoder()
CLAIMS = ObjectDecoder(RESOURCE_CLAIMS)


def depth(value: object) -> int:
    levels, inside = 0, [value]
    while inside := [one for one in inside if isinstance(one, list | dict)]:
        levels += 1
        inside = [part for one in inside for part in (one.values() if isinstance(one, dict) else one)]
    return levels


def has_surrogate(value: object) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in json.dumps(value, ensure_ascii=False))


@pytest.mark.parametrize("driver", ["gpu.example.com", DRIVER])
@pytest.mark.parametrize("value", (STORED | NOT_STORED).values(), ids=STORED | NOT_STORED)
def test_a_claim_with_hostile_parameters_is_decoded(value: bytes, driver: str) -> None:
    found = CLAIMS.decode(claim("odd", driver, value, uid="u1"))
    assert (found.metadata.name, found.metadata.uid) == ("odd", "u1")
    (config,) = found.spec.devices.config
    assert config.opaque is not None
    assert config.opaque.driver == driver
    assert found.domain_uids == set()


def test_a_claim_with_deep_managed_fields_is_decoded() -> None:
    found = CLAIMS.decode(claim("odd", DRIVER, b'{"domainID":"u"}', managedFields=DEEP_MANAGED_FIELDS))
    (config,) = found.spec.devices.config
    assert config.opaque is not None
    assert bytes(config.opaque.parameters) == b'{"domainID":"u"}'


@given(value=HOSTILE_JSON, others=st.lists(HOSTILE_JSON, max_size=2))
def test_a_page_with_any_parameters_is_decoded_object_by_object(value: bytes, others: list[bytes]) -> None:
    claims = [claim("odd", "gpu.example.com", value, *others), claim("plain", DRIVER, b'{"domainID":"u"}')]
    body = b'{"metadata":{"resourceVersion":"7"},"items":[%s]}' % b",".join(claims)
    page: Page[ResourceClaim] = decode(msgspec.json.Decoder(Page), body)
    found = [CLAIMS.decode(raw) for raw in page.items or ()]
    assert [one.metadata.name for one in found] == ["odd", "plain"]
    (config,) = found[1].spec.devices.config
    assert config.opaque is not None
    assert bytes(config.opaque.parameters) == b'{"domainID":"u"}'


@given(value=HOSTILE_JSON)
def test_a_repair_leaves_no_surrogate_and_no_depth(value: bytes) -> None:
    fixed = repaired(value)
    content = json.loads(fixed)
    assert depth(content) <= MAX_DEPTH
    assert not has_surrogate(content)
    assert repaired(fixed) == fixed


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        (rb'"\\ud800"', rb'"\\ud800"'),
        (rb'"\\\ud800"', rb'"\\\ufffd"'),
        (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
        (rb'"\ude00\ud83d"', rb'"\ufffd\ufffd"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
        (rb'"\uD83Dx\uDE00"', rb'"\ufffdx\ufffd"'),
    ],
)
def test_only_a_surrogate_without_its_counterpart_is_replaced(text: bytes, fixed: bytes) -> None:
    assert repaired(text) == fixed


@given(value=HOSTILE_JSON)
def test_a_repair_changes_nothing_else(value: bytes) -> None:
    assume(value.count(b"[") + value.count(b"{") <= MAX_DEPTH)
    # As pairs: a dict would lose a key that occurs twice.
    assume(not has_surrogate(json.loads(value, object_pairs_hook=list)))
    assert repaired(value) == value


@given(content=st.binary(max_size=60) | st.text('"\\ud8[]{}0', max_size=40).map(str.encode))
def test_content_that_is_not_json_raises_nothing_but_valueerror(content: bytes) -> None:
    with suppress(ValueError):
        decode(ANYTHING, content)


def test_an_object_of_another_form_is_refused_by_name() -> None:
    odd = b'{"metadata":{"name":"odd","namespace":"team","uid":"u","resourceVersion":"5"},"spec":7}'
    with pytest.raises(Undecodable) as refused:
        CLAIMS.decode(odd)
    assert str(refused.value) == (
        "ResourceClaim team/odd cannot be decoded: Expected `object`, got `int` - at `$.spec`"
    )
    identity = identity_of(odd)
    assert identity is not None
    assert (identity.key, identity.uid, identity.resource_version) == (Key("team", "odd"), "u", "5")


def test_an_object_without_readable_metadata_is_refused() -> None:
    with pytest.raises(Undecodable, match="ResourceClaim whose metadata cannot be decoded cannot be decoded"):
        CLAIMS.decode(b'{"metadata":{"name":7}}')
    assert identity_of(b"[]") is None


def test_a_cache_keeps_nothing_of_the_parameters_of_other_drivers() -> None:
    """Otherwise 20,000 claims of other drivers would cost the controller 200 MB; and none of our own more than 2
    KiB.
    """
    large = b'{"text":"%s"}' % (b"x" * 10_000)

    def bytes_per_claim(driver: str, parameters: bytes, **metadata: Any) -> float:
        tracemalloc.start()
        kept = [CLAIMS.decode(claim(f"c{number}", driver, parameters, **metadata)) for number in range(200)]
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return size / len(kept)

    assert bytes_per_claim("gpu.example.com", large) < 2000
    assert bytes_per_claim(DRIVER, large) < 2000
    assert bytes_per_claim(DRIVER, b"{}", annotations={"large": "x" * 10_000}) < 2000
