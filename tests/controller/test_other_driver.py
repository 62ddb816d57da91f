"""Which objects prove that NVIDIA's DRA driver serves ComputeDomains in this cluster."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.api.meta import ObjectMeta
from imex_dra.api.names import DRIVER
from imex_dra.api.views import (
    Container,
    ContainerList,
    DaemonSet,
    DaemonSetSpec,
    Lease,
    LeaseSpec,
    PodTemplate,
    Pool,
    ResourceSlice,
    ResourceSliceSpec,
)
from imex_dra.base.clock import rfc3339_micro
from imex_dra.controller.otherdriver import find_other_driver

NOW = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)
DRIVER_NAMESPACE = "nvidia-dra-driver-gpu"
TENANT = "team-a"


def daemon_set(namespace: str, *words: str, name: str = "kubelet-plugin") -> DaemonSet:
    containers = (Container(command=("bash", "-c")), Container(args=words))
    spec = DaemonSetSpec(PodTemplate(ContainerList(containers)))
    return DaemonSet(ObjectMeta(name=name, namespace=namespace), spec)


def plugin(namespace: str) -> DaemonSet:
    return daemon_set(namespace, "set -e\ncompute-domain-kubelet-plugin -v 4")


def lease(namespace: str, *, holder: str = "pod-1", age: float = 2.0) -> Lease:
    renewed = rfc3339_micro(NOW - timedelta(seconds=age))
    spec = LeaseSpec(holder_identity=holder, lease_duration_seconds=15, renew_time=renewed)
    return Lease(ObjectMeta(name="dra-driver-nvidia-gpu-controller", namespace=namespace), spec)


def foreign_slice(node: str = "n1") -> ResourceSlice:
    return ResourceSlice(ObjectMeta(name=f"{node}-x7f"), ResourceSliceSpec(DRIVER, Pool(node, 1, 1), node))


def find(**seen: Any) -> list[str]:
    return find_other_driver(
        seen.get("daemon_sets", ()), seen.get("leases", ()), seen.get("slices", ()), seen.get("now", NOW)
    )


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        pytest.param({}, [], id="nothing"),
        pytest.param(
            {"daemon_sets": [plugin(DRIVER_NAMESPACE)]},
            ["DaemonSet nvidia-dra-driver-gpu/kubelet-plugin"],
            id="its kubelet plugin",
        ),
        pytest.param(
            {"daemon_sets": [daemon_set("gpu-operator", "compute-domain-daemon", "run", name="cd-1")]},
            ["DaemonSet gpu-operator/cd-1"],
            id="the daemons of one of its ComputeDomains",
        ),
        pytest.param(
            {"daemon_sets": [daemon_set(DRIVER_NAMESPACE, "gpu-kubelet-plugin -v 4")]}, [], id="its part for GPUs"
        ),
        pytest.param(
            {"leases": [lease(DRIVER_NAMESPACE)]},
            ["Lease nvidia-dra-driver-gpu/dra-driver-nvidia-gpu-controller"],
            id="its controller",
        ),
        pytest.param({"leases": [lease(DRIVER_NAMESPACE, holder="")]}, [], id="a Lease that was released"),
        pytest.param({"leases": [lease(DRIVER_NAMESPACE, age=76)]}, [], id="a Lease that has expired"),
        pytest.param({"daemon_sets": [plugin(TENANT)]}, [], id="a DaemonSet that any user can create"),
        pytest.param(
            {"daemon_sets": [plugin(TENANT)], "leases": [lease(TENANT)]}, [], id="all that any user can create"
        ),
        pytest.param({"slices": [foreign_slice()]}, [], id="a slice that the kubelet of its node can create"),
        pytest.param(
            {"slices": [foreign_slice("n1"), foreign_slice("n2")]}, [], id="slices of two nodes, and no program"
        ),
        pytest.param(
            {"daemon_sets": [plugin("gpus")], "slices": [foreign_slice()]},
            ["DaemonSet gpus/kubelet-plugin", "ResourceSlice n1-x7f"],
            id="its kubelet plugin in any namespace, and a slice",
        ),
        pytest.param(
            {"leases": [lease("gpus")], "slices": [foreign_slice()]},
            ["Lease gpus/dra-driver-nvidia-gpu-controller", "ResourceSlice n1-x7f"],
            id="its controller in any namespace, and a slice",
        ),
    ],
)
def test_the_other_driver_is_found_by_what_only_it_or_an_administrator_creates(
    seen: dict[str, Any], found: list[str]
) -> None:
    assert find(**seen) == found


@pytest.mark.parametrize(("age", "held"), [(-30, True), (0, True), (74, True), (75, False), (3600, False)])
def test_a_lease_counts_until_it_expires_on_a_clock_that_is_a_minute_behind(age: float, held: bool) -> None:
    assert bool(find(leases=[lease("kube-system", age=age)])) is held


@pytest.mark.parametrize("time", ["", "9999-12-31T23:59:59.999999Z", "10000-01-01T00:00:00.000000Z", "soon"])
def test_a_lease_with_an_odd_time_does_no_harm(time: str) -> None:
    spec = LeaseSpec(holder_identity="x", lease_duration_seconds=2**31 - 1, renew_time=time)
    assert find(leases=[Lease(ObjectMeta(name="dra-driver-nvidia-gpu-controller", namespace=TENANT), spec)]) == []


@given(
    tenants=st.lists(st.sampled_from([plugin(TENANT), plugin("team-b")])),
    leases=st.lists(st.builds(lease, st.sampled_from([TENANT, "team-b"]), age=st.floats(0, 100))),
)
def test_no_number_of_objects_in_the_namespaces_of_users_stops_the_driver(
    tenants: list[DaemonSet], leases: list[Lease]
) -> None:
    assert find(daemon_sets=tenants, leases=leases) == []
