"""Records docs/screens/*.svg from a bundle of `imex collect`: `python -m tools.screens BUNDLE NAMESPACE JOB`.

The first pod of the job that waits is explained. `tools/screens.yaml` is what the bundle has.
"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from imex_dra.api.meta import Key
from imex_dra.cli.status import screen
from imex_dra.diagnose import report
from imex_dra.diagnose.bundle import unpack
from imex_dra.diagnose.chain import explain
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.overview import Selection, overview
from imex_dra.picture.display import rich_text
from imex_dra.picture.text import Lines

DIRECTORY = Path(__file__).parent.parent / "docs/screens"
WIDTH = 120


def record(name: str, title: str, lines: Lines) -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(rich_text(lines), soft_wrap=True)
    svg = console.export_svg(title=title, theme=MONOKAI, unique_id=name)
    # Without fonts from the network: those of the reader are fine.
    svg = re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")
    svg = svg.replace("<text ", '<text xml:space="preserve" ').replace("&#160;", " ")
    DIRECTORY.mkdir(exist_ok=True)
    (DIRECTORY / f"{name}.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


def main(bundle: str, namespace: str, job: str) -> None:
    cluster = Cluster(unpack(Path(bundle)))
    waiting = (pod.name for pod in cluster.pods if pod.namespace == namespace and not pod.node)
    pod = min(name for name in waiting if name.startswith(f"{job}-"))
    everything = Selection()
    record("status", "imex status", screen(cluster, everything, overview(cluster, everything), WIDTH, 60))
    explanation = explain(cluster, "pod", Key(namespace, pod))
    record("explain", f"imex explain -n {namespace} pod {pod}", report.explanation_lines(explanation, WIDTH))


if __name__ == "__main__":
    main(*sys.argv[1:])
