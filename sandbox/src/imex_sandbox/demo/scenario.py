"""What the demo does on two racks, in order, and what it checks after each step."""

from collections.abc import Callable

from imex_dra.api.meta import Key
from imex_dra.base.errors import NotYet, Rejected
from imex_dra.picture.snapshot import Snapshot
from imex_sandbox import racks
from imex_sandbox.demo import checks, workloads
from imex_sandbox.demo.cluster import DemoCluster
from imex_sandbox.demo.pods import Pods
from imex_sandbox.demo.report import Check, ClaimRow
from imex_sandbox.demo.steps import StepLog
from imex_sandbox.demo.workloads import NAMESPACE, OTHER, TRAIN, Job

RACKS, DRIVER, DOMAIN, POD, JOB, CLAIMS, ISOLATION, CLEANUP = STEPS = (
    "racks",
    "driver",
    "ComputeDomain",
    "pod",
    "MPIJob",
    "claims",
    "isolation",
    "cleanup",
)
TIMEOUT = 300.0
"""Seconds for each wait: long, because a machine that is busy with other work is no failure of the driver."""


class Scenario:
    def __init__(self, cluster: DemoCluster, steps: StepLog, spec: racks.Cluster, job: Job) -> None:
        self._cluster = cluster
        self._steps = steps
        self._job = job
        self._pods = Pods(cluster, TIMEOUT)
        self._nodes = len(racks.layout(spec))
        self._racks = len(spec.racks)

    async def run(self) -> None:
        """Raise at the first failure. The caller stops the cluster in any case."""
        await self._start_racks()
        await self._wait_for_driver()
        await self._create_domain()
        await self._run_pod()
        await self._run_job()
        self._check_claims()
        await self._check_isolation()
        await self._clean_up()

    async def _start_racks(self) -> None:
        with self._steps.step(RACKS, lambda: f"{len(self._observed.nodes)} of {self._nodes} nodes"):
            self._cluster.start()
            await self._cluster.wait_until_ready(TIMEOUT)
            await self._expect_eventually(lambda observed: [checks.nodes_are_ready(observed, self._nodes)])

    async def _wait_for_driver(self) -> None:
        def driver_checks(observed: Snapshot) -> list[Check]:
            return [
                checks.daemons_are_ready(observed, self._nodes),
                checks.partitions_are_up(observed, self._racks, self._nodes // self._racks),
                checks.channel_devices_are_published(observed, self._nodes),
            ]

        with self._steps.step(DRIVER, lambda: driver_checks(self._observed)[0].found):
            await self._expect_eventually(driver_checks)

    async def _create_domain(self) -> None:
        with self._steps.step(DOMAIN):
            await self._cluster.apply(workloads.namespace())
            self._steps.expect(await self._apply_domain(TRAIN))

    async def _run_pod(self) -> None:
        with self._steps.step(POD):
            await self._cluster.apply(workloads.minimal_pod())
            row = await self._pods.claim("minimal")
            output = await self._pods.output("minimal", lines=2)
            self._steps.expect(
                *checks.claims_are_reserved([row], 1),
                checks.container_has_its_channel(output, TRAIN, row.channel),
            )
            domains = self._cluster.watching.domains
            await self._expect_eventually(
                lambda observed: [checks.domain_is_ready(domains.get(Key(NAMESPACE, TRAIN)), 1)]
            )

    async def _run_job(self) -> None:
        job = self._job
        with self._steps.step(JOB, lambda: job.progress(self._observed.pods)):
            await self._cluster.apply(job.manifest())
            await self._wait_until_succeeded()
            output = await self._kubectl("logs", job.launcher)
            self._steps.expect(*checks.allreduce_succeeded(output, job.ranks))

    async def _wait_until_succeeded(self) -> None:
        job = self._job
        wait = ("wait", "--for=condition=Succeeded", f"mpijob/{job.name}", f"--timeout={job.within:.0f}s")
        try:
            await self._kubectl(*wait)
        except Rejected:
            pending = [pod.metadata.name for pod in self._observed.pods if pod.status.phase == "Pending"]
            why = f"; {pending[0]}: {await self._cluster.last_event(NAMESPACE, pending[0])}" if pending else ""
            raise NotYet(
                f"not Succeeded within {job.within:.0f} s: {job.progress(self._observed.pods)}{why}"
            ) from None

    def _check_claims(self) -> None:
        """Check the claims of the job's workers as they were while it ran. The report lists all claims."""
        with self._steps.step(CLAIMS):
            rows = [checks.claim_row(claim, self._observed.partitions) for claim in self._cluster.claims.values()]
            self._steps.claims = tuple(rows)
            workers = [row for row in rows if any(map(self._job.is_worker, row.pods))]
            expected = self._job.workers
            self._steps.expect(
                *checks.claims_are_reserved(workers, expected),
                checks.claims_are_on_different_nodes(workers, expected),
            )

    async def _check_isolation(self) -> None:
        """Import exported memory twice with the same handle: from the same ComputeDomain, and from another one.

        The importer of the other ComputeDomain runs on the exporter's own node, where isolation is hardest.
        """
        with self._steps.step(ISOLATION):
            await self._cluster.apply(workloads.memory_pod("exporter", TRAIN, "export"))
            await self._apply_domain(OTHER)
            handle = (await self._pods.memory_result("exporter")).handle
            exporter = await self._pods.claim("exporter")
            await self._cluster.apply(
                workloads.memory_pod("same-domain", TRAIN, "import", handle, node=self._other_node(exporter)),
                workloads.memory_pod("other-domain", OTHER, "import", handle, node=exporter.node),
            )
            self._steps.expect(
                checks.memory_was_read(await self._pods.memory_result("same-domain")),
                checks.channels_differ(exporter, await self._pods.claim("other-domain")),
                checks.memory_was_refused(await self._pods.memory_result("other-domain")),
            )

    async def _clean_up(self) -> None:
        """Delete what a user would delete, then stop the cluster."""
        with self._steps.step(CLEANUP):
            await self._kubectl("delete", "mpijobs,pods,computedomains", "--all", "--wait=false")
            await self._expect_eventually(checks.nothing_is_left)
            specs = await self._cluster.wait_until_unprepared(TIMEOUT)
            self._steps.expect(checks.no_claim_is_prepared(specs))
            self._steps.expect(*await self._cluster.stop())

    async def _apply_domain(self, name: str) -> Check:
        await self._cluster.apply(workloads.compute_domain(name))
        template = f"resourceclaimtemplate/{name}"
        await self._kubectl("wait", "--for=create", template, f"--timeout={TIMEOUT:.0f}s")
        return Check("its ResourceClaimTemplate exists", True, f"{NAMESPACE}/{name}")

    def _other_node(self, exporter: ClaimRow) -> str:
        """Another node of the exporter's partition."""
        partitions = self._observed.partitions
        members = next(p.status.members for p in partitions if p.metadata.name == exporter.partition)
        return next(member.node for member in members if member.node != exporter.node)

    @property
    def _observed(self) -> Snapshot:
        return self._cluster.watching.snapshot()

    async def _expect_eventually(self, found: Callable[[Snapshot], list[Check]]) -> None:
        self._steps.expect(*await self._cluster.wait_for_checks(found, TIMEOUT))

    async def _kubectl(self, *arguments: str) -> str:
        return await self._cluster.kubectl("-n", NAMESPACE, *arguments, within=TIMEOUT + 30)
