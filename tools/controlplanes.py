"""Runs the suites of simulated racks on real Kubernetes and on the embedded control plane.

    python -m tools.controlplanes [embedded|kubernetes] [SUITE...]

Without a control plane, on both. Results of other runs are kept, in tools/controlplanes.json;
docs/compatibility.md has a table of them (`tools.compatibility`), which contains nothing that was not run.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from imex_sandbox.kubernetes import binaries, versions
from tools.testresults import Result, Results, Selection, parse, store, today

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "tools/controlplanes.json"
CONTROL_PLANES = ("kubernetes", "embedded")

CONTRACTS = {
    "contract": ("Contracts of API server, scheduler, controllers, kubectl and clients", "tests/sandbox/embedded"),
    "client": ("The driver's client, watches, leader election", "tests/kube"),
}
RACKS = {
    "demo": ("The demo", "tests/sandbox/demo"),
    "racks": ("Two racks of 18 nodes as users see them; start, stop, signals", "tests/sandbox/cluster/racks"),
    "mpi": ("MPIJobs and the examples", "tests/sandbox/mpi/racks"),
    "failures": ("Dead nodes, lost objects, dead programs", "tests/sandbox/failures"),
    "faults": ("Every kind of fault", "tests/sandbox/faults/cluster"),
    "diagnosed": ("Findings of broken racks", "tests/sandbox/diagnosed"),
}
SUITES = CONTRACTS | RACKS


def selection(suite: str, control_plane: str) -> Selection:
    """A contract runs on both, one after the other, and `kube` marks the real one."""
    marker = "racks" if suite in RACKS else "kube" if control_plane == "kubernetes" else "not kube"
    return Selection([SUITES[suite][1]], marker)


def table(results: Results) -> str:
    """Every suite has a row, whether it was run or not."""
    header = ["suite", "real Kubernetes", "embedded control plane"]
    rows = [
        [f"{title} (`{path}`)", *(_cell(results.get(suite, {}).get(name)) for name in CONTROL_PLANES)]
        for suite, (title, path) in SUITES.items()
    ]
    lines = [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]
    remarks = [
        f"- {name}, {SUITES[suite][0]}: {remark}"
        for suite in SUITES
        for name, result in sorted(results.get(suite, {}).items())
        for remark in result.remarks
    ]
    return "\n\n".join(["\n".join(lines), *(["\n".join(remarks)] if remarks else [])])


def _cell(result: Result | None) -> str:
    if result is None:
        return "not run"
    return f"{result} ({', '.join(filter(None, (result.release, result.date)))})"


def save(suite: str, control_plane: str, result: Result) -> None:
    store(RESULTS, suite, control_plane, result)


def run(suite: str, control_plane: str) -> Result:
    environment = os.environ | {"IMEX_CONTROL_PLANE": control_plane}
    release = versions.version_of(binaries.find("kube-apiserver")) if control_plane == "kubernetes" else ""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        arguments = ["-q", "-n", "0", f"--junitxml={report}", *selection(suite, control_plane).arguments]
        code = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env=environment, check=False
        ).returncode
        if code > 1:
            raise SystemExit(f"pytest could not run the suite {suite} on {control_plane}: exit code {code}")
        return parse(report.read_bytes(), release=release, date=today())


def main(arguments: list[str]) -> None:
    control_planes = [name for name in arguments if name in CONTROL_PLANES] or CONTROL_PLANES
    suites = [name for name in arguments if name not in CONTROL_PLANES] or list(SUITES)
    if unknown := set(suites) - set(SUITES):
        raise SystemExit(f"unknown suites {', '.join(unknown)}: choose from {', '.join(SUITES)}")
    for suite in suites:
        for control_plane in control_planes:
            click.echo(f"{control_plane}: {SUITES[suite][0]}", err=True)
            save(suite, control_plane, run(suite, control_plane))


if __name__ == "__main__":
    main(sys.argv[1:])
