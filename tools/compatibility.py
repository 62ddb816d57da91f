"""Runs the driver's suites on the supported versions of Kubernetes, and writes docs/compatibility.md from that.

    python -m tools.compatibility [SUITE...]

`IMEX_KUBERNETES` selects one version; without it, all are run. Results of other suites and versions are kept, in
tools/compatibility.json. The page contains nothing that was not run. As root, because kubelets need it.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from imex_sandbox.kubernetes import binaries, versions
from tools import controlplanes
from tools.testresults import Result, Results, parse

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "tools/compatibility.json"
INTRODUCTION = ROOT / "tools/compatibility-introduction.md"
PAGE = ROOT / "docs/compatibility.md"

RACKS_INTRODUCTION = """\
## Real Kubernetes and the embedded control plane

The suites of simulated racks run on both: on real Kubernetes first, and on the [embedded control
plane](embedded.md), which is not Kubernetes. `python -m tools.controlplanes` runs them and keeps the results."""

SUITES = {
    "driver": ("The driver on real kubelets", ("tests/driver", "-m", "node")),
    "kubelet": ("Contract of the kubelet: the real one", ("tests/sandbox/kubelet", "-m", "node")),
    "simulated": ("Contract of the kubelet: the simulated ones", ("tests/sandbox/kubelet", "-m", "kube")),
    "nodes": ("Nodes with containerd", ("tests/sandbox/kubernetes/test_node.py",)),
    "controlplane": (
        "Control plane; contract of the API server",
        ("tests/sandbox/kubernetes/test_controlplane.py", "tests/sandbox/embedded", "-m", "kube"),
    ),
    "client": ("API client, watches, leader election", ("tests/kube", "-m", "kube")),
    "controller": ("`imex controller`", ("tests/controller", "-m", "kube")),
    "node": ("`imex node`", ("tests/node", "-m", "kube")),
    "policies": ("CRDs, admission policies, webhook", ("tests/api", "tests/policies", "-m", "kube")),
    "chart": ("Helm chart: the API server takes its objects", ("tests/chart", "-m", "kube")),
    "install": ("Helm chart: install, upgrade, uninstall on real kubelets", ("tests/chart", "-m", "node")),
}


def page(results: Results, introduction: str) -> str:
    """Every supported version has a column, whether it was run or not."""
    columns = [_column(results, minor) for minor in versions.KUBERNETES]
    titles = ["suite", *(title for title, _ in SUITES.values()), "date"]
    header, *rows = zip(titles, *columns, strict=True)
    table = "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))
    remarks = [
        f"- Kubernetes {minor}, {SUITES[suite][0]}: {remark}"
        for suite in SUITES
        for minor, result in sorted(results.get(suite, {}).items())
        for remark in result.remarks
    ]
    return "\n\n".join([introduction.rstrip(), table, *(["\n".join(remarks)] if remarks else [])]) + "\n"


def _column(results: Results, minor: str) -> list[str]:
    """The release, the results of all suites, and the first and the last day on which one was run."""
    found = {suite: row[minor] for suite, row in results.items() if minor in row}
    releases = sorted({result.release for result in found.values()}) or [versions.KUBERNETES[minor]]
    days = sorted({result.date for result in found.values()}) or [""]
    cells = [str(found[suite]) if suite in found else "not run" for suite in SUITES]
    return [", ".join(releases), *cells, " to ".join(dict.fromkeys((days[0], days[-1])))]


def load() -> Results:
    return msgspec.json.decode(RESULTS.read_bytes(), type=Results) if RESULTS.exists() else {}


def document() -> dict[Path, bytes]:
    both = f"{RACKS_INTRODUCTION}\n\n{controlplanes.table(controlplanes.load())}\n"
    return {PAGE: f"{page(load(), INTRODUCTION.read_text())}\n{both}".encode()}


def run(suite: str, minor: str) -> Result:
    environment = os.environ | {versions.VARIABLE: minor}
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        argv = [sys.executable, "-m", "pytest", "-q", "-n", "2", f"--junitxml={report}", *SUITES[suite][1]]
        code = subprocess.run(argv, cwd=ROOT, env=environment, check=False).returncode
        if code > 1:
            raise SystemExit(f"pytest could not run the suite {suite} on Kubernetes {minor}: exit code {code}")
        date = time.strftime("%Y-%m-%d", time.gmtime())
        return with_programs(parse(report.read_bytes(), release="", date=date), programs(minor))


def programs(minor: str) -> dict[str, str]:
    """The versions that the programs report, and not the version that was asked for."""
    os.environ[versions.VARIABLE] = minor
    missing = binaries.missing(versions.RELEASED)
    return {name: versions.version_of(binaries.find(name)) for name in versions.RELEASED if name not in missing}


def with_programs(result: Result, found: Mapping[str, str]) -> Result:
    """The release is that of the API server. Programs of other releases are remarked."""
    release = found["kube-apiserver"]
    others = [f"{name} {version}" for name, version in found.items() if version != release]
    remarks = (f"with {', '.join(others)}",) if others else ()
    return msgspec.structs.replace(result, release=release, remarks=(*remarks, *result.remarks))


def main(suites: list[str]) -> None:
    if unknown := set(suites) - set(SUITES):
        raise SystemExit(f"unknown suites {', '.join(unknown)}: choose from {', '.join(SUITES)}")
    minors = [versions.selected()] if os.environ.get(versions.VARIABLE) else list(versions.KUBERNETES)
    for minor in minors:
        for suite in suites or SUITES:
            click.echo(f"Kubernetes {minor}: {SUITES[suite][0]}", err=True)
            result = run(suite, minor)
            results = load()
            results.setdefault(suite, {})[minor] = result
            RESULTS.write_bytes(
                msgspec.json.format(msgspec.json.encode(results, order="sorted"), indent=1) + b"\n"
            )
            for path, content in document().items():
                path.write_bytes(content)


if __name__ == "__main__":
    main(sys.argv[1:])
