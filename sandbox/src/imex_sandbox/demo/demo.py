"""`imex demo` from beginning to end: build what is missing, run the scenario, clean up, report."""

import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TextIO

import click

from imex_dra.base.errors import ImexError
from imex_dra.picture.display import can_draw, live_display, print_once
from imex_dra.picture.model import EMPTY, ClusterModel
from imex_dra.picture.text import plain
from imex_sandbox import racks
from imex_sandbox.cluster.settings import EMBEDDED, KUBERNETES
from imex_sandbox.demo.cluster import DemoCluster
from imex_sandbox.demo.report import Check, Report, table
from imex_sandbox.demo.scenario import CLEANUP, STEPS, Scenario
from imex_sandbox.demo.steps import StepLog, run_while_alive
from imex_sandbox.demo.workloads import Job
from imex_sandbox.kubelet.processes import require_user_namespaces
from imex_sandbox.kubernetes import binaries, versions
from imex_sandbox.kubernetes.build import build

TITLE = "imex-dra · two GB200 NVL72 racks on this machine"
PROGRAMS = "programs"
_REAL = "imex demo --control-plane kubernetes runs the same on the real one"
_DUMPED = "nodes,nvlinknodes,nvlinkpartitions,computedomains,resourceclaims,mpijobs,pods,events"


class Demo:
    def __init__(self, spec: racks.Cluster, job: Job, control_plane: str = EMBEDDED) -> None:
        self._draws = can_draw(sys.stderr)
        self._steps = StepLog((PROGRAMS, *STEPS), self._print_line)
        self._cluster = DemoCluster(spec, control_plane)
        self._scenario = Scenario(self._cluster, self._steps, spec, job)
        self._control_plane = control_plane
        self._busiest = EMPTY

    @property
    def report(self) -> Report:
        return self._steps.report(str(self._cluster.paths.logs))

    def prepare(self) -> bool:
        """Build what is missing, from the main thread. Return False if that fails."""
        with suppress(ImexError), self._steps.step(PROGRAMS):
            binaries.require(binaries.TOOLS)
            require_user_namespaces()
            if self._control_plane == KUBERNETES:
                self._build()
            else:
                self._steps.expect(Check("the control plane is the embedded one, not Kubernetes", True, _REAL))
        return self.report.ok

    def _build(self) -> None:
        build(binaries.SIMULATED_CLUSTER)
        missing = binaries.missing(binaries.SIMULATED_CLUSTER)
        installed = f"{versions.kubernetes()}, {binaries.MPI_OPERATOR}"
        found = f"{', '.join(missing)} not found" if missing else installed
        self._steps.expect(Check("Kubernetes and the MPI Operator are installed", not missing, found))

    async def run(self) -> None:
        """Clean up in any case, also when the task is cancelled."""
        async with self._drawing(), self._cluster.watched():
            try:
                await run_while_alive(self._scenario.run(), self._cluster.failure)
            except ImexError:
                await self._dump_objects()
            finally:
                await self._stop_cluster()

    def print_report(self, stream: TextIO) -> None:
        """Print the table of checks. At a terminal, also the racks as they were when most channels were in use."""
        report = self.report
        if can_draw(stream):
            columns, _ = shutil.get_terminal_size()
            print_once(self._busiest, self._steps.progress(TITLE), table(report, columns), stream)
        else:
            click.echo(plain(table(report)), file=stream)

    @asynccontextmanager
    async def _drawing(self) -> AsyncIterator[None]:
        if not self._draws:
            yield
            return
        async with live_display(self._model, lambda: self._steps.progress(TITLE), sys.stderr):
            yield

    def _model(self) -> ClusterModel:
        model = self._cluster.watching.model()
        self._busiest = max(model, self._busiest, key=lambda one: one.prepared)
        return model

    async def _dump_objects(self) -> None:
        """Keep the state of the cluster at the time of the failure, next to the logs."""
        with suppress(ImexError, OSError):
            objects = await self._cluster.kubectl("get", _DUMPED, "-A", "-o", "wide")
            self._cluster.write_log("cluster.txt", objects)

    async def _stop_cluster(self) -> None:
        if self._cluster.running:
            with suppress(ImexError), self._steps.step(CLEANUP):
                self._steps.expect(*await self._cluster.stop())

    def _print_line(self, line: str) -> None:
        if not self._draws:
            click.echo(line, err=True)
