"""docs/troubleshooting.md stays true: each row has a test that produces what it describes, each text that it
quotes is said by a function or compared in such a test, and each finding that it names is found there.
"""

import ast
import re
from functools import cache
from typing import NamedTuple

import pytest

from imex_dra.api import claimreasons, domainreasons, nodereasons
from imex_dra.api.computedomain import TEMPLATE_READY
from imex_dra.api.reasons import Reason
from imex_dra.diagnose.podrules import device_not_found
from imex_dra.diagnose.rules import find_rule
from imex_dra.lint.rules import find_rule as find_lint_rule
from imex_sandbox.embedded.placement import summary
from imex_sandbox.softimex.errors import CudaError
from tests.expected import expected_texts, functions
from tests.paths import ROOT

PAGE = ROOT / "docs/troubleshooting.md"
RACKS = "tests/sandbox/diagnosed/test_broken_racks.py"
NODES = "tests/sandbox/diagnosed/test_broken_nodes.py"
RULES = "tests/diagnose/test_rules.py"
MEMORY = "tests/sandbox/softimex/test_memory.py"
ISOLATION = "tests/sandbox/softimex/test_isolation.py"
EMBEDDED = "tests/sandbox/embedded/test_scheduler.py"
FAULT = f"{RACKS}::test_a_fault_of_a_node_is_the_only_error"
PODS, WORKLOADS = f"{RACKS}::test_mistakes_in_pods_are_named", f"{RACKS}::test_mistakes_in_workloads_are_named"
PRACTICE = "docs/practice.md"
UNANSWERED = "test_a_pod_whose_kubelet_gets_no_answer_is_an_error_although_its_node_has_only_a_warning"
NOT_PREPARED = f"{NODES}::test_a_claim_that_cannot_be_prepared_is_named_with_what_the_node_said"

UPSTREAM = {
    'no matches for kind "ComputeDomain" in version "resource.nvidia.com/v1beta1"': "kubectl",
    "SchedulingGated": "the reason of the scheduler's condition",
    "device class compute-domain-default-channel.nvidia.com does not exist": "kube-scheduler",
    "the server could not find the requested resource": "the client of a kubelet before 1.34",
    "NodePrepareResources: rpc error: code = Unavailable": "the kubelet's gRPC",
    "NodePrepareResources: rpc error: code = DeadlineExceeded": "the kubelet's gRPC",
    "DRA driver compute-domain.nvidia.com is not registered": "the kubelet; test_registration has another name",
    "operation not permitted": "cuGetErrorString of 800",
    "invalid resource handle": "cuGetErrorString of 400",
    "cuMemSetAccess": "a function of CUDA",
    "MNNVL … is available but not working on this system": "mnnvl.cc of NCCL",
    "/dev/nvidia-caps-imex-channels": "mnnvl.cc of NCCL",
    "nvidia-imex-ctl -N": "mnnvl.cc of NCCL",
    "Failed to get new memory reference with rc: 87": "issue 948 of NVIDIA's driver",
}
"""Texts of other programs that no test here compares, and where they come from."""


class Row(NamedTuple):
    starts: str
    """How the row begins, as far as it is unique."""
    tests: tuple[str, ...]
    """Files, most of them with a test, that produce what the row describes."""
    said: tuple[str, ...] = ()
    """Texts that functions of the driver or of soft IMEX say."""


ROWS = (
    # The pod stays Pending
    Row(
        "event `FailedResourceClaimCreation`",
        (f"{EMBEDDED}::test_a_pod_without_its_template_has_one_event_that_says_so", PRACTICE, WORKLOADS),
    ),
    Row(
        "the same event for a moment", (f"{EMBEDDED}::test_a_pod_without_its_template_has_one_event_that_says_so",)
    ),
    Row("`0/36 nodes are", (PODS, PRACTICE), (summary(["cannot allocate all claims"], 36),)),
    Row(
        "`resourceclaim not available",
        (PODS, f"{EMBEDDED}::test_a_claim_that_is_allocated_keeps_other_pods_on_its_node"),
    ),
    Row("`device class", (f"{RACKS}::test_a_missing_device_class_is_the_only_error",)),
    Row(
        "the status `SchedulingGated`",
        ("tests/diagnose/test_chain.py::test_a_pod_with_scheduling_gates_waits_for_whoever_set_them",),
    ),
    Row("`no matches for kind", ("tests/cli/test_installation.py::test_each_step_of_an_installation_is_found",)),
    Row("`didn't match pod affinity rules`", (PODS, WORKLOADS)),
    Row("the same, from all nodes", (PODS,)),
    # The pod stays in ContainerCreating
    Row(
        "`the IMEX daemon of node",
        (FAULT, "tests/driver/test_prepare_failures.py::test_the_imex_daemon_is_not_ready"),
        (nodereasons.daemon_not_ready(node="n1", state="UNAVAILABLE", problem="").message(),),
    ),
    Row(
        "`the NVLink fabric is broken`",
        (FAULT, "tests/driver/test_prepare_failures.py::test_the_fabric_is_broken"),
        (nodereasons.fabric_broken(node="n1", cause="x").message(),),
    ),
    Row(
        "`has an invalid configuration",
        (NOT_PREPARED, "tests/driver/test_prepare_failures.py::test_the_config_has_an_unknown_field"),
        (claimreasons.invalid_config(claim="team/c", cause="x").message(),),
    ),
    Row("`requests allocationMode All`", (PRACTICE,), (domainreasons.all_channels_refused(domain="d").message(),)),
    Row(
        "`cannot reach the API server`",
        (NOT_PREPARED, "tests/node/test_prepare_races.py::test_an_unreachable_api_server_is_named_in_the_error"),
        (claimreasons.api_unreachable(node="n1", claim="team/c", cause="x").message(),),
    ),
    Row("`NodePrepareResources: rpc error: code = Unavailable`", (f"{RULES}::{UNANSWERED}",)),
    Row("`NodePrepareResources: rpc error: code = DeadlineExceeded`", (f"{RULES}::{UNANSWERED}",)),
    Row(
        "`DRA driver compute-domain.nvidia.com is not registered`",
        (
            f"{RULES}::{UNANSWERED}",
            "tests/sandbox/kubelet/test_registration.py"
            "::test_without_a_plugin_the_event_says_that_the_driver_is_not_registered",
        ),
    ),
    Row("`is not allowed to use ResourceClaim`", (PODS,)),
    Row(
        "`the server could not find",
        (f"{NODES}::test_a_kubelet_or_runtime_that_is_too_old_is_named",),
    ),
    Row(
        "event `Failed`",
        (
            f"{RACKS}::test_a_runtime_that_does_not_find_the_device_is_named",
            "tests/sandbox/kubelet/test_cdi.py::test_an_unknown_device_keeps_the_container_from_being_created",
        ),
        (device_not_found.finds,),
    ),
    # The pod runs, but memory is not shared
    Row(
        "CUDA error 800",
        (
            f"{ISOLATION}::test_a_process_with_another_channel_is_refused",
            "tests/sandbox/demo/test_sharedmemory.py::test_a_container_without_a_channel_reports_what_is_missing",
            PODS,
        ),
        (str(CudaError(800, "")),),
    ),
    Row(
        "no `/dev/nvidia-caps-imex-channels`",
        (PRACTICE, f"{NODES}::test_a_kubelet_or_runtime_that_is_too_old_is_named"),
    ),
    Row(
        "`cuMemSetAccess` fails with 801",
        (
            f"{MEMORY}::test_a_node_with_a_broken_fabric_neither_exports_nor_grants_imports",
            f"{ISOLATION}::test_a_process_in_another_partition_is_refused",
            FAULT,
            PRACTICE,
        ),
        (str(CudaError(801, "")),),
    ),
    Row(
        "`invalid resource handle`",
        (f"{MEMORY}::test_a_daemon_that_restarts_loses_all_exports",),
        (str(CudaError(400, "")),),
    ),
    Row("NCCL ends with a system error", (FAULT, PODS)),
    Row(
        "`Failed to get new memory reference",
        (
            "tests/node/test_prepare.py"
            "::test_a_prepare_that_waits_for_its_peers_ends_when_the_last_one_is_connected",
        ),
    ),
    Row("a program looks for `channel0`", ("docs/rules.md",)),
    Row("NCCL uses the network", (PRACTICE,)),
    Row(
        "imports of one node fail",
        (
            "tests/sandbox/failures/test_failures.py"
            "::test_the_restart_of_an_imex_daemon_is_an_event_of_the_computedomains_with_claims_there",
        ),
    ),
    Row("some pairs of nodes fail", (f"{RACKS}::test_nodes_that_cannot_reach_each_other_are_named", PRACTICE)),
    # The ComputeDomain
    Row("it is not Ready", (f"{NODES}::test_a_kubelet_that_does_not_start_pods_is_named",)),
    Row("`TemplateReady` is False", (WORKLOADS,), (TEMPLATE_READY, Reason.TEMPLATE_TAKEN)),
    Row("its deletion waits", (f"{RACKS}::test_a_deletion_that_waits_names_the_pods", PRACTICE)),
    # A node
    Row(
        "`another nvidia-imex runs on the host`",
        (
            "tests/sandbox/softimex/test_daemon.py::test_a_second_daemon_on_a_node_is_refused",
            FAULT,
            f"{RACKS}::test_what_preflight_must_find_in_a_cluster",
        ),
        (nodereasons.other_imex_running(pid=1, unit="", container=""),),
    ),
    Row(
        "`imex controller` or `imex node` exits with status 3",
        (
            "tests/driver/test_other_driver.py::test_a_node_stops_while_its_devices_are_published_by_another_driver",
            "tests/cli/test_installation.py::test_each_step_of_an_installation_is_found",
        ),
        (nodereasons.other_driver_present(found=["x"]).message(),),
    ),
    Row("the node publishes no devices", (FAULT, f"{RACKS}::test_a_node_that_publishes_no_devices_is_named")),
)


def rows_of_page() -> list[list[str]]:
    """Cells of all rows, without heads and without the messages of NVIDIA's driver."""
    text = PAGE.read_text().split("\n## Messages of NVIDIA")[0]
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [line.strip("|").split(" | ") for table in tables for line in table.splitlines()[2:]]


@cache
def source(test: str) -> str:
    """Of the test with its decorators, or of a page."""
    path, _, name = test.partition("::")
    text = (ROOT / path).read_text()
    if not name:
        return text
    functions = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    (function,) = [node for node in functions if node.name == name]
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    return "\n".join(text.splitlines()[first - 1 : function.end_lineno])


def compared(test: str) -> list[str]:
    """What the test compares; of a page, its blocks, which are executed and compared."""
    path, _, name = test.partition("::")
    text = (ROOT / path).read_text()
    if not name:
        return re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)
    return [text for one in functions(text) if one.name == name for text in expected_texts(one)]


def cells(row: Row) -> list[str]:
    (found,) = [found for found in rows_of_page() if found[0].strip().startswith(row.starts)]
    return found


by_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.starts)


def test_every_row_is_here() -> None:
    missing = [
        found[0] for found in rows_of_page() if not any(found[0].strip().startswith(r.starts) for r in ROWS)
    ]
    assert missing == []


@by_row
def test_a_row_is_on_the_page_and_its_tests_exist(row: Row) -> None:
    assert cells(row)
    assert all(map(source, row.tests))


@by_row
def test_a_quoted_text_is_said_or_compared(row: Row) -> None:
    """Or it is of another program, or a command. What a test only mentions does not count."""
    texts = [*row.said, *(text for test in row.tests for text in compared(test))]
    for quote in re.findall(r"`([^`]+)`", cells(row)[0]):
        if quote.startswith("imex "):
            continue
        pattern = ".*".join(map(re.escape, quote.split("…")))
        assert quote in UPSTREAM or any(re.search(pattern, text) for text in texts), quote


def test_no_text_of_another_program_is_listed_in_vain() -> None:
    quotes = {quote for found in rows_of_page() for quote in re.findall(r"`([^`]+)`", found[0])}
    assert UPSTREAM.keys() <= quotes


@by_row
def test_a_finding_of_a_row_is_found_by_one_of_its_tests(row: Row) -> None:
    """What only `imex lint` finds has tests of its own."""
    found = "".join(map(source, row.tests))
    for id in re.findall(r"\[(IMEX\d+)\]", "".join(cells(row))):
        if find_rule(id):
            assert id in found, id
        else:
            assert find_lint_rule(id), id
