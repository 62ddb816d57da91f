"""The demo on two racks of two nodes, for tests: `python -m tests.sandbox.demo.small NAME WORKERS SECONDS`.

If there are more workers than nodes in a rack, the MPIJob never runs and fails after SECONDS.
"""

import os
import sys

from imex_sandbox import racks
from imex_sandbox.cli.demo import run
from imex_sandbox.cluster.settings import EMBEDDED
from imex_sandbox.demo.demo import Demo
from imex_sandbox.demo.workloads import Job
from imex_sandbox.racks import Rack

if __name__ == "__main__":
    name, workers, seconds = sys.argv[1:]
    pair = tuple(Rack(rack, "gb200-nvl72", nodes=2) for rack in ("r0", "r1"))
    spec = racks.Cluster("sandbox.imex-dra.io/v1", "Cluster", pair, name)
    control_plane = os.environ.get("IMEX_CONTROL_PLANE", EMBEDDED)
    sys.exit(run(Demo(spec, Job(int(workers), 4, within=float(seconds)), control_plane), "json"))
