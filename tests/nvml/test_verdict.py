"""What a report of NVML and the kernel means for the node: properties that hold for every report, and examples."""

import msgspec
import pytest
from hypothesis import find, given
from hypothesis import strategies as st
from msgspec import structs

from imex_dra.api.nvlinknode import FabricState
from imex_dra.hardware.protocol import Reading
from imex_dra.hardware.report import (
    FabricInfo,
    FailedCall,
    Gpu,
    KernelInfo,
    NvmlAnswer,
    NvmlError,
    NvmlResult,
    NvmlUnavailable,
    PlatformInfo,
    Report,
)
from imex_dra.hardware.verdict import NvmlFabricState, evaluate
from tests.nvml.stub import BOOT_ID, CLUSTER_UUID, HEALTHY, VERSION, ZERO_UUID

FABRIC_CALL = "nvmlDeviceGetGpuFabricInfoV"
KERNEL = KernelInfo(4, 234, 2048, boot_id=BOOT_ID)

words = st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=8)
failed_calls = st.builds(
    FailedCall,
    function=st.sampled_from([FABRIC_CALL, "nvmlDeviceGetHandleByIndex", "nvmlInit"]),
    code=st.sampled_from([1, 3, 4, 9, 10, 12, 13, 15, 16, 18, 25, 999]),
    message=words,
)
fabric_infos = st.builds(
    FabricInfo,
    state=st.integers(0, 4),
    status=st.sampled_from([0, 0, 0, 3, 10, 999]),
    status_message=words,
    cluster_uuid=st.sampled_from([CLUSTER_UUID, CLUSTER_UUID, ZERO_UUID, "0d3b9b83-4f43-4b3c-9f21-5a5b6f6f8d11"]),
    clique=st.integers(0, 2),
    health_mask=st.sampled_from([0, HEALTHY, HEALTHY]) | st.integers(0, 0xFFFF),
    health_summary=st.integers(0, 3),
)
platform_infos = st.none() | st.builds(PlatformInfo, words, st.integers(0, 255), st.integers(0, 255))
gpus = st.builds(Gpu, index=st.integers(0, 7), fabric=fabric_infos, platform=platform_infos) | st.builds(
    Gpu, index=st.integers(0, 7), failed_call=failed_calls
)
failures = st.builds(NvmlError, failed_call=failed_calls) | st.builds(
    NvmlUnavailable, reason=words, driver_fault=st.booleans()
)
REGISTERED = FabricInfo(NvmlFabricState.COMPLETED, cluster_uuid=CLUSTER_UUID, clique=1, health_mask=HEALTHY)
SINGLE_NODE = FabricInfo(NvmlFabricState.COMPLETED, cluster_uuid=ZERO_UUID)
UNSUPPORTED = FabricInfo(NvmlFabricState.NOT_SUPPORTED)
OTHER_CLIQUE = structs.replace(REGISTERED, clique=2)
FAILED = structs.replace(REGISTERED, status=10)
usual = st.sampled_from([REGISTERED, REGISTERED, SINGLE_NODE, UNSUPPORTED])


@st.composite
def nvml_answers(draw: st.DrawFn) -> NvmlAnswer:
    """GPUs that mostly agree, as on real nodes, and sometimes one or two that do not."""
    info = draw(usual | usual | fabric_infos)
    found = [Gpu(index, fabric=info) for index in range(draw(st.integers(0, 5)))]
    different = st.sampled_from([REGISTERED, SINGLE_NODE, UNSUPPORTED, OTHER_CLIQUE, FAILED])
    others = st.builds(Gpu, st.just(9), fabric=different) | gpus
    found += draw(st.just([]) | st.lists(others, min_size=1, max_size=2))
    return NvmlAnswer(VERSION, tuple(found))


nvml_results = nvml_answers() | nvml_answers() | failures


@st.composite
def whole_reports(draw: st.DrawFn) -> Report:
    nvml = draw(nvml_results)
    listed = len(nvml.gpus) if isinstance(nvml, NvmlAnswer) else 4
    consistent = structs.replace(KERNEL, pci_gpus=listed)
    kernels = st.builds(
        KernelInfo,
        pci_gpus=st.none() | st.integers(0, 5) | st.just(listed),
        channel_major=st.none() | st.just(234),
        channel_count=st.sampled_from([None, 0, 2048]),
        boot_id=st.just(BOOT_ID),
    )
    return Report(nvml, draw(st.sampled_from([consistent, consistent]) | kernels))


reports = whole_reports()


def evaluated(*gpus: Gpu, kernel: KernelInfo = KERNEL) -> Reading:
    return evaluate(Report(NvmlAnswer(VERSION, gpus), kernel))


def gpu(
    index: int, *, state: int = NvmlFabricState.COMPLETED, cluster_uuid: str = CLUSTER_UUID, clique: int = 7
) -> Gpu:
    return Gpu(index, fabric=FabricInfo(state, cluster_uuid=cluster_uuid, clique=clique, health_mask=HEALTHY))


@pytest.mark.parametrize("state", FabricState)
def test_the_generated_reports_lead_to_every_state(state: FabricState) -> None:
    find(reports, lambda report: evaluate(report).fabric.state is state)


@given(reports)
def test_the_partition_is_set_if_and_only_if_the_fabric_is_ok(report: Report) -> None:
    reading = evaluate(report)
    assert bool(reading.partition) == (reading.fabric.state is FabricState.OK)


@given(reports)
def test_every_state_but_ok_has_a_reason(report: Report) -> None:
    fabric = evaluate(report).fabric
    assert fabric.reason or fabric.state is FabricState.OK


@given(reports)
def test_none_is_reported_only_if_nvml_lists_all_gpus_and_none_has_a_fabric(report: Report) -> None:
    if evaluate(report).fabric.state is not FabricState.NONE:
        return
    assert isinstance(report.nvml, NvmlAnswer)
    assert len(report.nvml.gpus) == report.kernel.pci_gpus != 0
    for each in report.nvml.gpus:
        call, info = each.failed_call, each.fabric
        rejected = call is not None and (call.function, call.code) == (FABRIC_CALL, 3)
        unsupported = info is not None and info.state == NvmlFabricState.NOT_SUPPORTED
        single_node = info is not None and info.cluster_uuid == ZERO_UUID
        assert rejected or unsupported or single_node


@given(reports)
def test_ok_is_reported_only_if_all_registered_gpus_are_in_one_partition(report: Report) -> None:
    reading = evaluate(report)
    if reading.fabric.state is not FabricState.OK:
        return
    assert isinstance(report.nvml, NvmlAnswer)
    registered = [
        each.fabric for each in report.nvml.gpus if each.fabric and each.fabric.state == NvmlFabricState.COMPLETED
    ]
    assert {f"{info.cluster_uuid}.{info.clique}" for info in registered} == {reading.partition}
    assert all(info.status == 0 for info in registered)
    assert reading.channel_count > 0


@given(reports)
def test_the_order_of_the_gpus_does_not_change_the_state(report: Report) -> None:
    if not isinstance(report.nvml, NvmlAnswer):
        return
    reversed_ = structs.replace(report.nvml, gpus=tuple(reversed(report.nvml.gpus)))
    one, other = evaluate(report), evaluate(structs.replace(report, nvml=reversed_))
    assert (one.fabric.state, one.partition) == (other.fabric.state, other.partition)


@given(nvml_results)
def test_a_result_survives_the_encoding_between_probe_and_parent(result: NvmlResult) -> None:
    assert msgspec.json.decode(msgspec.json.encode(result), type=NvmlResult) == result


def test_a_gpu_without_fabric_support_does_not_matter_beside_registered_ones() -> None:
    reading = evaluated(gpu(0), gpu(1, state=NvmlFabricState.NOT_SUPPORTED))
    assert (reading.fabric.state, reading.partition) == (FabricState.OK, f"{CLUSTER_UUID}.7")


def test_gpus_of_one_node_in_two_cliques_break_the_fabric() -> None:
    assert evaluated(gpu(0, clique=1), gpu(1, clique=2)).fabric.state is FabricState.BROKEN


def test_a_gpu_that_lost_its_cluster_uuid_breaks_the_fabric() -> None:
    fabric = evaluated(gpu(0), gpu(1), gpu(2, cluster_uuid=ZERO_UUID)).fabric
    assert fabric.state is FabricState.BROKEN
    assert fabric.reason.startswith("GPU 2 has no cluster UUID")


def test_a_gpu_that_nvml_no_longer_lists_does_not_break_the_fabric_of_the_others() -> None:
    """The PCI bus still has it. Whether a pod can run without it is decided by the driver that allocates GPUs."""
    assert evaluated(gpu(0), gpu(1), gpu(2)).fabric.state is FabricState.OK


def test_a_reason_that_several_gpus_share_is_reported_once() -> None:
    fabric = evaluated(*(gpu(index, state=NvmlFabricState.IN_PROGRESS) for index in range(4))).fabric
    assert fabric.reason == "GPU 0 is registering with the fabric (and 3 more of 4 GPUs)"


@pytest.mark.parametrize("pci_gpus", [None, 3, 5])
def test_none_is_not_reported_if_the_pci_bus_does_not_confirm_the_number_of_gpus(pci_gpus: int | None) -> None:
    kernel = structs.replace(KERNEL, pci_gpus=pci_gpus)
    fabric = evaluated(*(gpu(index, cluster_uuid=ZERO_UUID) for index in range(4)), kernel=kernel).fabric
    assert fabric.state is FabricState.PENDING


def test_gpus_on_the_pci_bus_that_nvml_does_not_list_yet_are_pending() -> None:
    assert evaluated().fabric.state is FabricState.PENDING
