"""The health mask and the health summary of NVML, by the values that NVIDIA documents.

Each mask is 0x51AA, in which every field is reported and good, with one field changed.
"""

from typing import NamedTuple

import pynvml  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.hardware.health import Severity, evaluate_health

HEALTHY, LIMITED, RECOVERING, BROKEN = Severity


class Case(NamedTuple):
    name: str
    """Field and value in NVIDIA's header, after NVML_GPU_FABRIC_HEALTH_MASK_."""
    mask: int
    severity: Severity
    message: str


INCORRECT = "its fabric configuration is incorrect"
CASES = [
    Case("DEGRADED_BW TRUE", 0x51A9, LIMITED, "its NVLink bandwidth is degraded"),
    Case("ROUTE_RECOVERY TRUE", 0x51A6, RECOVERING, "its NVLink routes are being recovered"),
    Case("ROUTE_UNHEALTHY TRUE", 0x519A, BROKEN, "its NVLink routes are unhealthy"),
    Case("ACCESS_TIMEOUT_RECOVERY TRUE", 0x516A, RECOVERING, "it is recovering from a memory access timeout"),
    Case(
        "INCORRECT_CONFIGURATION INCORRECT_SYSGUID",
        0x52AA,
        BROKEN,
        f"{INCORRECT}: its system GUID does not match the fabric manager's configuration",
    ),
    Case(
        "INCORRECT_CONFIGURATION INCORRECT_CHASSIS_SN",
        0x53AA,
        BROKEN,
        f"{INCORRECT}: its chassis serial number does not match the fabric manager's configuration",
    ),
    Case("INCORRECT_CONFIGURATION NO_PARTITION", 0x54AA, BROKEN, f"{INCORRECT}: it is not in an NVLink partition"),
    Case("INCORRECT_CONFIGURATION INSUFFICIENT_NVLINKS", 0x55AA, BROKEN, f"{INCORRECT}: it has too few NVLinks"),
    Case(
        "INCORRECT_CONFIGURATION INCOMPATIBLE_GPU_FW",
        0x56AA,
        BROKEN,
        f"{INCORRECT}: its firmware is not compatible with the fabric",
    ),
    Case(
        "INCORRECT_CONFIGURATION INVALID_LOCATION",
        0x57AA,
        BROKEN,
        f"{INCORRECT}: its location in the rack is invalid",
    ),
    Case("INCORRECT_CONFIGURATION GPU_STATE_INVALID", 0x58AA, BROKEN, f"{INCORRECT}: its GPU state is invalid"),
    Case("PARTITION_ASSIGNED FALSE", 0x61AA, BROKEN, "no NVLink partition is assigned to it"),
    Case("GFM_STATE DISCONNECTED", 0x91AA, LIMITED, "it is disconnected from the global fabric manager"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_documented_value_has_a_severity_and_a_message(case: Case) -> None:
    assert evaluate_health(case.mask, 0) == (case.severity, case.message)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_masks_of_this_table_agree_with_the_constants_of_nvidia_s_bindings(case: Case) -> None:
    prefix, (field, value) = "NVML_GPU_FABRIC_HEALTH_MASK", case.name.split()
    shift, width = (getattr(pynvml, f"{prefix}_{part}_{field}") for part in ("SHIFT", "WIDTH"))
    assert case.mask >> shift & width == getattr(pynvml, f"{prefix}_{field}_{value}")
    assert case.mask & ~(width << shift) == 0x51AA & ~(width << shift)


@pytest.mark.parametrize(
    ("mask", "summary"),
    [(0, 0), (0, 1), (0x51AA, 0), (0x51AA, 1)],
    ids=["nothing is reported", "only the summary", "only the mask", "mask and summary"],
)
def test_a_gpu_that_reports_no_trouble_is_healthy(mask: int, summary: int) -> None:
    assert evaluate_health(mask, summary) == (HEALTHY, "")


def test_a_configuration_error_of_a_later_driver_is_reported_by_its_number() -> None:
    assert evaluate_health(0x5BAA, 0) == (BROKEN, f"{INCORRECT}: NVML gives cause 11")


def test_all_findings_are_reported_and_the_highest_severity_counts() -> None:
    assert evaluate_health(0x5195, 2) == (
        BROKEN,
        "its NVLink bandwidth is degraded and its NVLink routes are being recovered"
        " and its NVLink routes are unhealthy",
    )


@pytest.mark.parametrize(
    ("mask", "summary", "severity", "message"),
    [
        (0x51A6, 2, RECOVERING, "its NVLink routes are being recovered"),
        (0x519A, 2, BROKEN, "its NVLink routes are unhealthy"),
        (0x51A9, 3, LIMITED, "its NVLink bandwidth is degraded"),
    ],
)
def test_a_summary_that_the_mask_explains_adds_nothing(
    mask: int, summary: int, severity: Severity, message: str
) -> None:
    assert evaluate_health(mask, summary) == (severity, message)


@pytest.mark.parametrize(
    ("mask", "summary", "severity", "message"),
    [
        (0x51AA, 2, BROKEN, "NVML reports its fabric health as unhealthy"),
        (0x51AA, 3, LIMITED, "NVML reports its fabric health as limited capacity"),
        (0, 2, BROKEN, "NVML reports its fabric health as unhealthy"),
        (
            0x51A9,
            2,
            BROKEN,
            "its NVLink bandwidth is degraded and NVML reports its fabric health as unhealthy",
        ),
    ],
)
def test_a_summary_that_the_mask_does_not_explain_counts(
    mask: int, summary: int, severity: Severity, message: str
) -> None:
    assert evaluate_health(mask, summary) == (severity, message)


@given(st.integers(0, 2**32 - 1), st.integers(0, 5))
def test_a_message_is_given_if_and_only_if_there_is_trouble(mask: int, summary: int) -> None:
    severity, message = evaluate_health(mask, summary)
    assert bool(message) == (severity is not HEALTHY)
