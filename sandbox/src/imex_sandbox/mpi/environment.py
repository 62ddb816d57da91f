"""The environment variables of a rank: those of Open MPI, those of torchrun, and those that the launcher exports.

All other variables are those of the worker container, so a rank has the variables of its pod and its claim.
"""

from collections.abc import Mapping, Sequence

from imex_sandbox.mpi.arguments import Arguments
from imex_sandbox.mpi.mapping import Placement

MASTER_ADDRESS = "127.0.0.1"
"""Simulated containers share the network of the machine, so rank 0 listens here on every node."""

_MCA_PREFIX = "OMPI_MCA_"


def mca_parameters(arguments: Arguments, environment: Mapping[str, str]) -> dict[str, str]:
    """From the environment, where the MPI Operator sets them, and from `-mca`, which has precedence."""
    from_environment = {
        name.removeprefix(_MCA_PREFIX): value
        for name, value in environment.items()
        if name.startswith(_MCA_PREFIX)
    }
    return from_environment | arguments.mca_parameters


def missing_exports(arguments: Arguments, environment: Mapping[str, str]) -> list[str]:
    """Variables that `-x` exports, but that the launcher does not have."""
    return [name for name in arguments.exports if "=" not in name and name not in environment]


def job_variables(
    arguments: Arguments, environment: Mapping[str, str], placements: Sequence[Placement], port: int
) -> dict[str, str]:
    """The variables that are equal for all ranks of the job. Variables of `-x` have precedence."""
    open_mpi = {name: value for name, value in environment.items() if name.startswith("OMPI_")}
    mca = {_MCA_PREFIX + name: value for name, value in mca_parameters(arguments, environment).items()}
    size = str(len(placements))
    sizes = {"OMPI_COMM_WORLD_SIZE": size, "OMPI_UNIVERSE_SIZE": size, "WORLD_SIZE": size}
    master = {"MASTER_ADDR": MASTER_ADDRESS, "MASTER_PORT": str(port)}
    return open_mpi | mca | sizes | master | _exported(arguments.exports, environment)


def rank_variables(placement: Placement) -> dict[str, str]:
    rank, local_rank, local_size = str(placement.rank), str(placement.local_rank), str(placement.local_size)
    return {
        "OMPI_COMM_WORLD_RANK": rank,
        "OMPI_COMM_WORLD_LOCAL_RANK": local_rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": local_size,
        "OMPI_COMM_WORLD_NODE_RANK": local_rank,
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_size,
    }


def _exported(exports: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    variables = {}
    for export in exports:
        name, assigned, value = export.partition("=")
        if assigned:
            variables[name] = value
        elif name in environment:
            variables[name] = environment[name]
    return variables
