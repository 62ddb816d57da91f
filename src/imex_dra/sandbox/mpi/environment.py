"""What a rank finds in its environment: Open MPI's variables, torchrun's, and those that the launcher hands on.

Everything else is the worker container's own, so a rank sees what its pod's manifest and its claim put there.
"""

from collections.abc import Mapping, Sequence

from imex_dra.sandbox.mpi.arguments import Arguments
from imex_dra.sandbox.mpi.layout import Placement

MASTER_ADDRESS = "127.0.0.1"
"""Simulated containers share the machine's network, so rank 0 listens here whichever node it is on."""

_PARAMETER = "OMPI_MCA_"


def parameters(arguments: Arguments, environment: Mapping[str, str]) -> dict[str, str]:
    """Open MPI's settings: from the environment, as the MPI Operator gives them, and from `-mca`, which wins."""
    given = {
        name.removeprefix(_PARAMETER): value for name, value in environment.items() if name.startswith(_PARAMETER)
    }
    return given | arguments.parameters


def unset(arguments: Arguments, environment: Mapping[str, str]) -> list[str]:
    """Names that `-x` would hand on, if the launcher had them."""
    return [name for name in arguments.exports if "=" not in name and name not in environment]


def shared(
    arguments: Arguments, environment: Mapping[str, str], placements: Sequence[Placement], port: int
) -> dict[str, str]:
    """The same for all ranks of the job. What `-x` says wins over everything."""
    handed = {name: value for name, value in environment.items() if name.startswith("OMPI_")}
    settings = {_PARAMETER + name: value for name, value in parameters(arguments, environment).items()}
    size = str(len(placements))
    job = {"OMPI_COMM_WORLD_SIZE": size, "OMPI_UNIVERSE_SIZE": size, "WORLD_SIZE": size}
    meeting = {"MASTER_ADDR": MASTER_ADDRESS, "MASTER_PORT": str(port)}
    return handed | settings | job | meeting | _exported(arguments.exports, environment)


def own(placement: Placement) -> dict[str, str]:
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
    result = {}
    for word in exports:
        name, given, value = word.partition("=")
        if given:
            result[name] = value
        elif name in environment:
            result[name] = environment[name]
    return result
