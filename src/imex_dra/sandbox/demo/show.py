"""The demo itself: what is done on two racks, in which order, and what must then be so."""

from collections.abc import Callable

from imex_dra.api.meta import Key
from imex_dra.base.errors import NotYet, Rejected
from imex_dra.picture.observed import Observed
from imex_dra.sandbox import racks
from imex_dra.sandbox.demo import checks, mpijob, workloads
from imex_dra.sandbox.demo.mpijob import Job
from imex_dra.sandbox.demo.pods import Pods
from imex_dra.sandbox.demo.report import Check, ClaimRow
from imex_dra.sandbox.demo.run import Run
from imex_dra.sandbox.demo.venue import Venue
from imex_dra.sandbox.demo.workloads import NAMESPACE, OTHER, TRAIN

RACKS, DRIVER, DOMAIN, POD, JOB, CLAIMS, STRANGER, CLEAN_UP = STEPS = (
    "racks",
    "driver",
    "ComputeDomain",
    "minimal pod",
    "MPIJob",
    "every claim",
    "stranger",
    "clean-up",
)
WITHIN = 300.0
"""Seconds that each thing may take: a laptop that does something else besides is no defect."""


class Show:
    def __init__(self, venue: Venue, run: Run, spec: racks.Cluster, job: Job, *, within: float = WITHIN) -> None:
        self._venue = venue
        self._run = run
        self._job = job
        self._within = within
        self._pods = Pods(venue, within)
        self._nodes = len(racks.layout(spec))
        self._racks = len(spec.racks)

    async def perform(self) -> None:
        """Raises at the first thing that is not as it should be. The caller stops the venue in any case."""
        await self._start_racks()
        await self._await_driver()
        await self._create_domain()
        await self._run_minimal_pod()
        await self._run_job()
        self._verify_claims()
        await self._let_a_stranger_try()
        await self._clean_up()

    async def _start_racks(self) -> None:
        with self._run.step(RACKS, lambda: f"{len(self._seen.nodes)} of {self._nodes} nodes"):
            self._venue.start()
            await self._venue.until_ready(self._within)
            await self._settle(lambda seen: [checks.nodes_are_ready(seen, self._nodes)])

    async def _await_driver(self) -> None:
        def found(seen: Observed) -> list[Check]:
            return [
                checks.daemons_are_ready(seen, self._nodes),
                checks.partitions_are_up(seen, self._racks, self._nodes // self._racks),
                checks.seats_are_offered(seen, self._nodes),
            ]

        with self._run.step(DRIVER, lambda: found(self._seen)[0].found):
            await self._settle(found)

    async def _create_domain(self) -> None:
        with self._run.step(DOMAIN):
            await self._venue.apply(workloads.namespace())
            self._run.expect(await self._domain(TRAIN))

    async def _run_minimal_pod(self) -> None:
        with self._run.step(POD):
            await self._venue.apply(workloads.minimal())
            row = await self._pods.claim("minimal")
            said = await self._pods.said("minimal", lines=2)
            self._run.expect(*checks.claims_are_held([row], 1), checks.container_has(said, TRAIN, row.channel))
            await self._settle(lambda seen: [checks.domain_is_ready(self._venue.watching.domains.get(_TRAIN), 1)])

    async def _run_job(self) -> None:
        job = self._job
        with self._run.step(JOB, lambda: job.progress(self._seen.pods)):
            await self._venue.apply(job.manifest())
            await self._until_succeeded()
            self._run.expect(*mpijob.judged(await self._ask("logs", job.launcher), job.ranks))

    async def _until_succeeded(self) -> None:
        job = self._job
        wait = ("wait", "--for=condition=Succeeded", f"mpijob/{job.name}", f"--timeout={job.within:.0f}s")
        try:
            await self._ask(*wait)
        except Rejected:
            late = [pod.metadata.name for pod in self._seen.pods if pod.status.phase == "Pending"]
            why = f"; {late[0]}: {await self._venue.why(NAMESPACE, late[0])}" if late else ""
            raise NotYet(
                f"not Succeeded within {job.within:.0f} s: {job.progress(self._seen.pods)}{why}"
            ) from None

    def _verify_claims(self) -> None:
        """Those of the job as they were while it ran; for the record also everybody else's."""
        with self._run.step(CLAIMS):
            rows = [checks.row(claim, self._seen.partitions) for claim in self._venue.claims.values()]
            self._run.claims = tuple(rows)
            workers = [row for row in rows if any(map(self._job.is_worker, row.pods))]
            expected = self._job.workers
            self._run.expect(
                *checks.claims_are_held(workers, expected), checks.nodes_are_their_own(workers, expected)
            )

    async def _let_a_stranger_try(self) -> None:
        """Two processes with one handle: of the exporter's ComputeDomain on another node, of another beside it."""
        with self._run.step(STRANGER):
            await self._venue.apply(workloads.memory("exporter", TRAIN, "export"))
            await self._domain(OTHER)
            handle = (await self._pods.word("exporter")).handle
            exporter = await self._pods.claim("exporter")
            await self._venue.apply(
                workloads.memory("friend", TRAIN, "import", handle, node=self._other_node(exporter)),
                workloads.memory("stranger", OTHER, "import", handle, node=exporter.node),
            )
            self._run.expect(
                checks.was_let_in(await self._pods.word("friend")),
                checks.channels_differ(exporter, await self._pods.claim("stranger")),
                checks.was_refused(await self._pods.word("stranger")),
            )

    async def _clean_up(self) -> None:
        """What a user would delete; then the cluster."""
        with self._run.step(CLEAN_UP):
            await self._ask("delete", "mpijobs,pods,computedomains", "--all", "--wait=false")
            await self._settle(checks.nothing_is_left)
            self._run.expect(checks.nodes_are_empty(await self._venue.until_empty(self._within)))
            self._run.expect(*await self._venue.stop())

    async def _domain(self, name: str) -> Check:
        await self._venue.apply(workloads.compute_domain(name))
        await self._ask("wait", "--for=create", f"resourceclaimtemplate/{name}", f"--timeout={self._within:.0f}s")
        return Check("its ResourceClaimTemplate is there", True, f"{NAMESPACE}/{name}")

    def _other_node(self, exporter: ClaimRow) -> str:
        """In the same partition."""
        members = next(p.status.members for p in self._seen.partitions if p.metadata.name == exporter.partition)
        return next(member.node for member in members if member.node != exporter.node)

    @property
    def _seen(self) -> Observed:
        return self._venue.watching.observed()

    async def _settle(self, found: Callable[[Observed], list[Check]]) -> None:
        self._run.expect(*await self._venue.settled(found, self._within))

    async def _ask(self, *words: str) -> str:
        return await self._venue.ask("-n", NAMESPACE, *words, within=self._within + 30)


_TRAIN = Key(NAMESPACE, TRAIN)
