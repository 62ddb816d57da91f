"""The machine that the figures were measured on. No host name and no path: the document is public."""

import os
import platform
import subprocess
from pathlib import Path

from msgspec import Struct

from imex_sandbox.kubernetes import binaries


class Machine(Struct, frozen=True):
    cores: int
    processor: str
    python: str
    kubernetes: str

    def __str__(self) -> str:
        return (
            f"{self.cores} cores ({self.processor}), Python {self.python}, "
            f"Kubernetes {self.kubernetes or 'not built here'}"
        )


def this_machine() -> Machine:
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        processor=_processor(),
        python=platform.python_version(),
        kubernetes=_kubernetes(),
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{platform.machine()}, {model}" if model else platform.machine()


def _kubernetes() -> str:
    if binaries.missing(["kube-apiserver"]):
        return ""
    done = subprocess.run(
        [binaries.find("kube-apiserver"), "--version"], capture_output=True, text=True, check=True
    )
    return done.stdout.split()[-1]
