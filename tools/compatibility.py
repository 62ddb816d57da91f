"""Runs the driver's suites on the supported versions of Kubernetes, and writes docs/compatibility.md from that.

    python -m tools.compatibility [SUITE...]
    python -m tools.compatibility --report FILE      after make test-kube ARGS=--junitxml=FILE

`IMEX_KUBERNETES` selects one version; without it, all are run. Results of other suites and versions are kept, in
tools/compatibility.json. The page contains nothing that was not run. As root, because kubelets need it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from imex_sandbox.kubernetes import binaries, versions
from tools import controlplanes
from tools.testresults import Result, Results, Selection, load, parse, store, today

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "tools/compatibility.json"
INTRODUCTION = ROOT / "tools/compatibility-introduction.md"
PAGE = ROOT / "docs/compatibility.md"

RACKS_INTRODUCTION = """\
## Real Kubernetes and the embedded control plane

The suites of simulated racks run on both: on real Kubernetes first, and on the [embedded control
plane](embedded.md), which is not Kubernetes. `python -m tools.controlplanes` runs them and keeps the results."""

SUITES = {
    "driver": ("The driver on real kubelets", Selection(["tests/driver"], "node")),
    "kubelet": ("Contract of the kubelet: the real one", Selection(["tests/sandbox/kubelet"], "node")),
    "simulated": ("Contract of the kubelet: the simulated ones", Selection(["tests/sandbox/kubelet"], "kube")),
    "nodes": ("Nodes with containerd", Selection(["tests/sandbox/kubernetes/test_node.py"])),
    "controlplane": (
        "Control plane; contract of the API server",
        Selection(["tests/sandbox/kubernetes/test_controlplane.py", "tests/sandbox/embedded"], "kube"),
    ),
    "client": ("API client, watches, leader election", Selection(["tests/kube"], "kube")),
    "controller": ("`imex controller`", Selection(["tests/controller"], "kube")),
    "node": ("`imex node`", Selection(["tests/node"], "kube")),
    "policies": ("CRDs, admission policies, webhook", Selection(["tests/api", "tests/policies"], "kube")),
    "chart": ("Helm chart: the API server takes its objects", Selection(["tests/chart"], "kube")),
    "install": (
        "Helm chart: install, upgrade, uninstall on real kubelets",
        Selection(["tests/chart"], "node"),
    ),
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


def document() -> dict[Path, bytes]:
    both = f"{RACKS_INTRODUCTION}\n\n{controlplanes.table(load(controlplanes.RESULTS))}\n"
    return {PAGE: f"{page(load(RESULTS), INTRODUCTION.read_text())}\n{both}".encode()}


def run(suite: str, minor: str) -> Result:
    environment = os.environ | {versions.VARIABLE: minor}
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        options = ["-q", "-n", "2", f"--junitxml={report}", *SUITES[suite][1].arguments]
        argv = [sys.executable, "-m", "pytest", *options]
        code = subprocess.run(argv, cwd=ROOT, env=environment, check=False).returncode
        if code > 1:
            raise SystemExit(f"pytest could not run the suite {suite} on Kubernetes {minor}: exit code {code}")
        return with_programs(parse(report.read_bytes(), release="", date=today()), programs(minor))


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


def save(suite: str, minor: str, result: Result) -> None:
    store(RESULTS, suite, minor, result)
    for path, content in document().items():
        path.write_bytes(content)


def take_over(report: Path) -> None:
    """The results of `make test-kube ARGS=--junitxml=FILE`, which runs all suites on one version. The comparison
    with the embedded control plane is with the default version.
    """
    minor, found = versions.selected(), report.read_bytes()
    release = programs(minor)
    for suite, (_, selection) in SUITES.items():
        save(suite, minor, with_programs(parse(found, release="", date=today(), selection=selection), release))
    for suite in controlplanes.SUITES if minor == versions.DEFAULT else ():
        selection = controlplanes.selection(suite, "kubernetes")
        result = parse(found, release=release["kube-apiserver"], date=today(), selection=selection)
        controlplanes.save(suite, "kubernetes", result)
    for path, content in document().items():
        path.write_bytes(content)


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--report"]:
        take_over(Path(arguments[1]))
        return
    if unknown := set(arguments) - set(SUITES):
        raise SystemExit(f"unknown suites {', '.join(unknown)}: choose from {', '.join(SUITES)}")
    minors = [versions.selected()] if os.environ.get(versions.VARIABLE) else list(versions.KUBERNETES)
    for minor in minors:
        for suite in arguments or SUITES:
            click.echo(f"Kubernetes {minor}: {SUITES[suite][0]}", err=True)
            save(suite, minor, run(suite, minor))


if __name__ == "__main__":
    main(sys.argv[1:])
