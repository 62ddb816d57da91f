"""`imex demo` from its first to its last moment: build what is missing, perform, clean up, report."""

import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TextIO

import click

from imex_dra.base.errors import ImexError
from imex_dra.picture.ink import plain
from imex_dra.picture.scene import EMPTY, Scene
from imex_dra.picture.screen import can_draw, drawn, shown
from imex_dra.sandbox import racks
from imex_dra.sandbox.demo.mpijob import Job
from imex_dra.sandbox.demo.report import Check, Report, table
from imex_dra.sandbox.demo.run import Run, unless_ended
from imex_dra.sandbox.demo.show import CLEAN_UP, STEPS, WITHIN, Show
from imex_dra.sandbox.demo.venue import Venue
from imex_dra.sandbox.kubelet import namespaces
from imex_dra.sandbox.kubernetes import binaries
from imex_dra.sandbox.kubernetes.build import build

TITLE = "imex-dra · two GB200 NVL72 racks on this machine"
PROGRAMS = "programs"
NEEDED = (*binaries.CONTROL_PLANE, "mpi-operator")
_EVIDENCE = "nodes,nvlinknodes,nvlinkpartitions,computedomains,resourceclaims,mpijobs,pods,events"


class Demo:
    def __init__(
        self, spec: racks.Cluster, job: Job, *, stream: TextIO = sys.stderr, within: float = WITHIN
    ) -> None:
        self._stream = stream
        self._draws = can_draw(stream)
        self._run = Run((PROGRAMS, *STEPS), self._tell)
        self._venue = Venue(spec)
        self._show = Show(self._venue, self._run, spec, job, within=within)
        self._brightest = EMPTY

    @property
    def report(self) -> Report:
        return self._run.report(str(self._venue.places.logs))

    def prepare(self) -> bool:
        """What is missing is built, with progress; from the main thread. False if it can't be."""
        with suppress(ImexError), self._run.step(PROGRAMS):
            binaries.expect(binaries.TOOLS)
            namespaces.expect()
            if binaries.missing(NEEDED):
                click.echo(_FIRST_TIME, err=True)
                build(NEEDED)
            missing, versions = binaries.missing(NEEDED), f"{binaries.KUBERNETES}, {binaries.MPI_OPERATOR}"
            found = f"no {', '.join(missing)}" if missing else versions
            self._run.expect(Check("Kubernetes and the MPI Operator are there", not missing, found))
        return self.report.ok

    async def perform(self) -> None:
        """Cleans up whatever happens; cancelled, it cleans up and stays cancelled."""
        async with self._audience(), self._venue.watched():
            try:
                await unless_ended(self._show.perform(), self._venue.ended)
            except ImexError:
                await self._keep_evidence()
            finally:
                await self._leave_nothing()

    def print_report(self, stream: TextIO) -> None:
        """The table of what was checked, and above it, where they were drawn, the racks at their brightest."""
        report = self.report
        if can_draw(stream):
            columns, _ = shutil.get_terminal_size()
            shown(self._brightest, self._run.story(TITLE), table(report, columns), stream)
        else:
            click.echo(plain(table(report)), file=stream)

    @asynccontextmanager
    async def _audience(self) -> AsyncIterator[None]:
        if not self._draws:
            yield
            return
        async with drawn(self._scene, lambda: self._run.story(TITLE), self._stream):
            yield

    def _scene(self) -> Scene:
        scene = self._venue.watching.scene()
        self._brightest = max(scene, self._brightest, key=lambda one: one.lights)
        return scene

    async def _keep_evidence(self) -> None:
        """What the cluster looked like when something was wrong, beside the logs."""
        with suppress(ImexError, OSError):
            self._venue.keep("cluster.txt", await self._venue.ask("get", _EVIDENCE, "-A", "-o", "wide"))

    async def _leave_nothing(self) -> None:
        if self._venue.running:
            with suppress(ImexError), self._run.step(CLEAN_UP):
                self._run.expect(*await self._venue.stop())

    def _tell(self, words: str) -> None:
        if not self._draws:
            click.echo(words, file=self._stream)


_FIRST_TIME = (
    f"building Kubernetes {binaries.KUBERNETES} and the MPI Operator from source, this once. It takes"
    f" minutes; they are kept in {binaries.cache_root()}"
)
