"""`imex collect`. Writes what `imex_dra.diagnose.loading` and `drivertexts` read, as `bundle` packs it."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import click

from imex_dra.base.errors import Unreadable
from imex_dra.cli.exitcodes import or_exit
from imex_dra.cli.reading import context_option, output_option, print_plain
from imex_dra.cli.running import kubeconfig_option
from imex_dra.diagnose.bundle import pack
from imex_dra.diagnose.drivertexts import ctl_answers, driver_logs
from imex_dra.diagnose.loading import read_cluster
from imex_dra.diagnose.snapshot import Snapshot
from imex_dra.kube.client import Client
from imex_dra.kube.connection import default_namespace


@click.command(
    name="collect",
    help="""Collect a support bundle: one archive to analyze elsewhere.

    It contains what `imex status`, `verify` and `explain` read (pods, claims, templates, ComputeDomains,
    NVLinkPartitions, NVLinkNodes, Nodes, ResourceSlices, Events and a few others), the logs of the driver's
    pods, and what nvidia-imex-ctl said last on every node. These commands read it with --from.

    Left out: Secrets and ConfigMaps, which are never read; values of variables of containers, except those of
    NCCL, CUDA, NVIDIA and the like; annotations of other programs; values of HTTP headers; passwords and tokens in
    any text, also in logs and Events, as far as they can be recognized. Names of pods, images and nodes stay, and
    labels. Look at it before you pass it on.

    \b
    Exit codes:
      0  the bundle is written; it says what could not be read
      2  could not run

    \b
    Examples:
      imex collect
      imex collect --file bundle.tar.gz --no-logs
      imex collect -o json                           # name and content of the bundle, and what is missing in it
      imex explain -n team-a pod worker-3 --from bundle.tar.gz""",
)
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write. Default: imex-bundle-<time>.tar.gz in the current directory.",
)
@click.option("--no-logs", is_flag=True, help="Without logs.")
@output_option
@context_option
@kubeconfig_option
def command(file: Path | None, no_logs: bool, output: str, context: str, kubeconfig: Path | None) -> None:
    def run() -> int:
        snapshot, texts, problems = asyncio.run(_load(kubeconfig, context, not no_logs))
        target = file or Path(f"imex-bundle-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar.gz")
        try:
            target.write_bytes(pack(snapshot, texts))
        except OSError as error:
            raise Unreadable(f"{target} cannot be written: {error.strerror}") from error
        missing = [*snapshot.sentences, *problems]
        objects = sum(map(len, snapshot.objects.values()))
        logs = sum(name.startswith("logs/") for name in texts)
        answers = len(texts) - logs
        if output == "text":
            for sentence in missing:
                click.echo(f"not collected: {sentence}", err=True)
            click.echo(f"{target}: {objects} objects, {logs} logs, nvidia-imex-ctl of {answers} nodes")
        else:
            content = {"file": str(target), "objects": objects, "logs": logs, "ctlAnswers": answers}
            print_plain({**content, "missing": missing}, output)
        return 0

    or_exit(run)


async def _load(
    kubeconfig: Path | None, context: str, with_logs: bool
) -> tuple[Snapshot, dict[str, str], list[str]]:
    client = Client.connect("imex-cli", kubeconfig, context)
    try:
        snapshot = await read_cluster(client, default_namespace(kubeconfig, context))
        logs, not_logged = await driver_logs(client, snapshot) if with_logs else ({}, [])
        answers, not_answered = await ctl_answers(client, snapshot)
        return snapshot, {**logs, **answers}, [*not_logged, *not_answered]
    finally:
        await client.close()
