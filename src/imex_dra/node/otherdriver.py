"""Guard against another driver of the same name on this node, as `controller/otherdriver.py` is for the cluster.

The kubelet sends its calls to the plugin that registered last. If ours registered next to NVIDIA's, it would take
over the claims that the other one prepared. So `imex node` looks for foreign ResourceSlices of its node before it
registers, and ends when one appears later: the other driver has registered by then and answers the kubelet.
"""

import asyncio
from collections.abc import Iterable

import structlog
from msgspec import structs

from imex_dra.api.meta import OTHER_DRIVER
from imex_dra.api.names import DRIVER, MANAGED_BY, MANAGED_BY_LABEL
from imex_dra.api.nodereasons import other_driver_on_node
from imex_dra.api.nvlinknode import NVLINK_NODES
from imex_dra.api.reasons import Reason
from imex_dra.api.views import RESOURCE_SLICES, ResourceSlice
from imex_dra.base.clock import Clock
from imex_dra.base.errors import ImexError, OtherDriver
from imex_dra.kube.client import Client, Selection
from imex_dra.kube.conditions import with_condition
from imex_dra.kube.patch import patch_changes
from imex_dra.node.report import read_nvlink_node

log = structlog.get_logger()

_CHECK_LIMIT = 5.0
"""Seconds. Unprepare needs no API server, so a node that cannot reach it registers unchecked."""


def node_slices(node: str) -> Selection:
    """The node's slices of this driver name, by any publisher."""
    return Selection(fields=f"spec.nodeName={node},spec.driver={DRIVER}")


def refuse_foreign(node: str, slices: Iterable[ResourceSlice]) -> None:
    """Raises OtherDriver if one of the slices is not ours."""
    foreign = sorted(s.metadata.name for s in slices if s.metadata.labels.get(MANAGED_BY_LABEL) != MANAGED_BY)
    if foreign:
        raise OtherDriver(other_driver_on_node(node=node, slices=foreign).message())


async def check_before_registration(client: Client, node: str, *, limit: float = _CHECK_LIMIT) -> None:
    try:
        async with asyncio.timeout(limit):
            slices = await client.list(RESOURCE_SLICES, node_slices(node))
    except (ImexError, TimeoutError) as error:
        log.warning("cannot check whether another driver serves this node", error=str(error))
    else:
        refuse_foreign(node, slices)


async def withdraw(client: Client, node: str, found: ExceptionGroup[OtherDriver], clock: Clock) -> None:
    """Deletes our slices, which share a pool with the other driver's, and sets the condition of the NVLinkNode.

    An error here must not hide what was found: it is logged, and the program ends all the same.
    """
    try:
        ours = structs.replace(node_slices(node), labels=f"{MANAGED_BY_LABEL}={MANAGED_BY}")
        for published in await client.list(RESOURCE_SLICES, ours):
            await client.delete(RESOURCE_SLICES, published)
        await _set_condition(client, node, _message(found), clock)
    except ImexError as error:
        log.warning("cannot report the other driver", error=str(error))


def _message(found: BaseException) -> str:
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return str(found)


async def _set_condition(client: Client, node: str, message: str, clock: Clock) -> None:
    live = await read_nvlink_node(client, node)
    conditions = with_condition(
        live.status.conditions,
        OTHER_DRIVER,
        status=True,
        reason=Reason.OTHER_DRIVER_ON_NODE,
        message=message,
        now=clock.now(),
    )
    after = structs.replace(live, status=structs.replace(live.status, conditions=conditions))
    await patch_changes(client, NVLINK_NODES, live, after, subresource="status")
