"""The demo on two racks of two nodes, for tests: `python -m tests.demo.small NAME WORKERS SECONDS`.

With more workers than a rack has nodes its MPIJob can't ever run, and is given up after so many seconds.
"""

import sys

from imex_dra.cli.demo import run
from imex_dra.sandbox import racks
from imex_dra.sandbox.demo.mpijob import Job
from imex_dra.sandbox.demo.program import Demo
from imex_dra.sandbox.racks import Rack

if __name__ == "__main__":
    name, workers, seconds = sys.argv[1:]
    pair = tuple(Rack(rack, "gb200-nvl72", nodes=2) for rack in ("r0", "r1"))
    spec = racks.Cluster("sandbox.imex-dra.io/v1", "Cluster", pair, name)
    sys.exit(run(Demo(spec, Job(int(workers), 4, within=float(seconds))), "json"))
