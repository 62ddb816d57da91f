"""Containers that run with a channel: what is true of them, and what the driver has told them.

The truth comes from the claim, from the hardware and from the device that the container can open, never from what
the driver wrote. The checks compare the two.
"""

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Told(NamedTuple):
    """What the driver has said about a claim: nothing of it is taken for true."""

    domain: str
    """The UID in the environment of the container."""
    channel: int
    """In the environment; -1: none."""
    partition: str
    """In the annotation of the CDI spec, from which the checkpoint is rebuilt when it is lost."""


class Process(NamedTuple):
    """A container that runs with a channel."""

    pod: str
    """UID."""
    claim: str
    """UID."""
    node: str
    partition: str
    """Whose channel it is, by the hardware: the node may have moved since it was prepared."""
    domain: str
    """That of the claim."""
    channel: int
    """The device that it can open; -1: none."""
    told: Told
    moves: int
    """How often its node had been moved to another partition when it started."""


def read_told(env: Iterable[str], annotations: Mapping[str, str]) -> Told:
    variables = dict(each.split("=", 1) for each in env)
    return Told(
        variables.get("COMPUTE_DOMAIN_UUID", ""),
        int(variables.get("COMPUTE_DOMAIN_CHANNEL", -1)),
        json.loads(annotations["imex-dra.io/prepared-claim"])["partition"],
    )
