import msgspec
import pytest
from hypothesis import find, given
from hypothesis import strategies as st
from msgspec import structs

from imex_dra.api.nvlinknode import FabricState
from imex_dra.hardware.protocol import Reading
from imex_dra.hardware.report import (
    Answer,
    FabricInfo,
    Failure,
    Gpu,
    Kernel,
    Place,
    Refused,
    Report,
    Silent,
    Told,
)
from imex_dra.hardware.verdict import Phase, reading
from tests.nvml.stub import BOOT, CLUSTER, HEALTHY, NO_CLUSTER, VERSION

FABRIC_CALL = "nvmlDeviceGetGpuFabricInfoV"
KERNEL = Kernel(4, 234, 2048, imex_management=True, boot_id=BOOT)

words = st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=8)
failures = st.builds(
    Failure,
    call=st.sampled_from([FABRIC_CALL, "nvmlDeviceGetHandleByIndex", "nvmlInit"]),
    code=st.sampled_from([1, 3, 4, 9, 10, 12, 13, 15, 16, 18, 25, 999]),
    words=words,
)
infos = st.builds(
    FabricInfo,
    state=st.integers(0, 4),
    status=st.sampled_from([0, 0, 0, 3, 10, 999]),
    status_words=words,
    cluster_uuid=st.sampled_from([CLUSTER, CLUSTER, NO_CLUSTER, "0d3b9b83-4f43-4b3c-9f21-5a5b6f6f8d11"]),
    clique=st.integers(0, 2),
    health_mask=st.sampled_from([0, HEALTHY, HEALTHY]) | st.integers(0, 0xFFFF),
    health_summary=st.integers(0, 3),
)
places = st.none() | st.builds(Place, words, st.integers(0, 255), st.integers(0, 255))
gpus = st.builds(Gpu, index=st.integers(0, 7), fabric=infos, place=places) | st.builds(
    Gpu, index=st.integers(0, 7), failure=failures
)
silences = st.builds(Refused, failure=failures) | st.builds(Silent, why=words, faulty=st.booleans())
healthy = FabricInfo(Phase.COMPLETED, cluster_uuid=CLUSTER, clique=1, health_mask=HEALTHY)
inside = FabricInfo(Phase.COMPLETED, cluster_uuid=NO_CLUSTER)
unsupported = FabricInfo(Phase.NOT_SUPPORTED)
elsewhere = structs.replace(healthy, clique=2)
failed = structs.replace(healthy, status=10)
usual = st.sampled_from([healthy, healthy, inside, unsupported])


@st.composite
def told(draw: st.DrawFn) -> Told:
    """GPUs that mostly agree, as they do on real nodes, and some that do not."""
    info = draw(usual | usual | infos)
    found = [Gpu(index, fabric=info) for index in range(draw(st.integers(0, 5)))]
    odd = st.sampled_from([healthy, inside, unsupported, elsewhere, failed])
    strangers = st.builds(Gpu, st.just(9), fabric=odd) | gpus
    found += draw(st.just([]) | st.lists(strangers, min_size=1, max_size=2))
    return Told(VERSION, tuple(found))


answers = told() | told() | silences


@st.composite
def whole_reports(draw: st.DrawFn) -> Report:
    answer = draw(answers)
    seen = len(answer.gpus) if isinstance(answer, Told) else 4
    sound = structs.replace(KERNEL, pci_gpus=seen)
    kernels = st.builds(
        Kernel,
        pci_gpus=st.none() | st.integers(0, 5) | st.just(seen),
        channel_major=st.none() | st.just(234),
        channel_count=st.sampled_from([None, 0, 2048]),
        imex_management=st.booleans(),
        boot_id=st.just(BOOT),
    )
    return Report(answer, draw(st.sampled_from([sound, sound]) | kernels))


reports = whole_reports()


def judged(*gpus: Gpu, kernel: Kernel = KERNEL) -> Reading:
    return reading(Report(Told(VERSION, gpus), kernel))


def gpu(index: int, *, state: int = Phase.COMPLETED, cluster: str = CLUSTER, clique: int = 7) -> Gpu:
    return Gpu(index, fabric=FabricInfo(state, cluster_uuid=cluster, clique=clique, health_mask=HEALTHY))


@pytest.mark.parametrize("state", FabricState)
def test_the_reports_below_lead_to_every_state(state: FabricState) -> None:
    find(reports, lambda report: reading(report).fabric.state is state)


@given(reports)
def test_a_partition_is_named_if_and_only_if_the_fabric_is_ok(report: Report) -> None:
    result = reading(report)
    assert bool(result.partition) == (result.fabric.state is FabricState.OK)


@given(reports)
def test_what_is_not_ok_has_a_reason(report: Report) -> None:
    fabric = reading(report).fabric
    assert fabric.reason or fabric.state is FabricState.OK


@given(reports)
def test_none_is_proven(report: Report) -> None:
    if reading(report).fabric.state is not FabricState.NONE:
        return
    answer = report.answer
    assert isinstance(answer, Told)
    assert len(answer.gpus) == report.kernel.pci_gpus != 0
    for each in answer.gpus:
        refused = each.failure is not None and (each.failure.call, each.failure.code) == (FABRIC_CALL, 3)
        stateless = each.fabric is not None and each.fabric.state == Phase.NOT_SUPPORTED
        alone = each.fabric is not None and each.fabric.cluster_uuid == NO_CLUSTER
        assert refused or stateless or alone


@given(reports)
def test_ok_is_what_every_gpu_in_the_fabric_agrees_on(report: Report) -> None:
    result = reading(report)
    if result.fabric.state is not FabricState.OK:
        return
    assert isinstance(report.answer, Told)
    attached = [each.fabric for each in report.answer.gpus if each.fabric and each.fabric.state == Phase.COMPLETED]
    assert {f"{info.cluster_uuid}.{info.clique}" for info in attached} == {result.partition}
    assert all(info.status == 0 for info in attached)
    assert result.channel_count > 0


@given(reports)
def test_the_order_of_gpus_decides_nothing_but_who_is_named(report: Report) -> None:
    if not isinstance(report.answer, Told):
        return
    turned = structs.replace(report.answer, gpus=tuple(reversed(report.answer.gpus)))
    one, other = reading(report), reading(structs.replace(report, answer=turned))
    assert (one.fabric.state, one.partition) == (other.fabric.state, other.partition)


@given(answers)
def test_an_answer_survives_the_way_from_the_child(answer: Answer) -> None:
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Answer) == answer


def test_a_gpu_of_another_kind_beside_the_rack_s_is_of_no_account() -> None:
    result = judged(gpu(0), gpu(1, state=Phase.NOT_SUPPORTED))
    assert (result.fabric.state, result.partition) == (FabricState.OK, f"{CLUSTER}.7")


def test_two_cliques_in_one_node_break_the_fabric() -> None:
    assert judged(gpu(0, clique=1), gpu(1, clique=2)).fabric.state is FabricState.BROKEN


def test_a_gpu_that_fell_out_of_the_cluster_breaks_the_fabric() -> None:
    fabric = judged(gpu(0), gpu(1), gpu(2, cluster=NO_CLUSTER)).fabric
    assert fabric.state is FabricState.BROKEN
    assert fabric.reason.startswith("GPU 2 is in no cluster")


def test_a_lost_gpu_does_not_take_the_fabric_from_the_others() -> None:
    """PCI still lists it; whether a pod may run is for whoever hands out GPUs."""
    assert judged(gpu(0), gpu(1), gpu(2)).fabric.state is FabricState.OK


def test_many_gpus_with_one_trouble_make_one_sentence() -> None:
    fabric = judged(*(gpu(index, state=Phase.IN_PROGRESS) for index in range(4))).fabric
    assert fabric.reason == "GPU 0 is joining the fabric (and 3 more of 4)"


@pytest.mark.parametrize("pci_gpus", [None, 3, 5])
def test_without_the_pci_bus_as_witness_nothing_is_proven(pci_gpus: int | None) -> None:
    kernel = structs.replace(KERNEL, pci_gpus=pci_gpus)
    fabric = judged(*(gpu(index, cluster=NO_CLUSTER) for index in range(4)), kernel=kernel).fabric
    assert fabric.state is FabricState.PENDING


def test_gpus_on_the_bus_that_nvml_does_not_see_are_waited_for() -> None:
    assert judged().fabric.state is FabricState.PENDING
