import shlex

import pytest

from imex_dra.base.errors import Misconfigured
from imex_dra.sandbox.mpi.arguments import Arguments, parse

RUN = ("imex", "allreduce")


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ("", Arguments()),
        ("-np 72", Arguments(processes=72)),
        ("-n 72", Arguments(processes=72)),
        ("--np=72", Arguments(processes=72)),
        ("-N 4", Arguments(per_node=4)),
        ("--map-by ppr:4:node", Arguments(per_node=4)),
        ("--map-by ppr:4:node:PE=8", Arguments(per_node=4)),
        ("-pernode", Arguments(per_node=1)),
        ("--map-by node", Arguments(by_node=True)),
        ("--map-by slot:OVERSUBSCRIBE", Arguments(oversubscribe=True)),
        ("--map-by core", Arguments()),
        ("-x NCCL_DEBUG=INFO -x PATH", Arguments(exports=("NCCL_DEBUG=INFO", "PATH"))),
        ("--hostfile /etc/mpi/hostfile", Arguments(hostfile="/etc/mpi/hostfile")),
        ("-H a:4,b -host c", Arguments(hosts=("a:4", "b", "c"))),
        ("-wdir /work --tag-output", Arguments(directory="/work", tag_output=True)),
        ("-mca btl ^openib --mca pml ob1", Arguments(parameters={"btl": "^openib", "pml": "ob1"})),
    ],
)
def test_flags_that_place_and_feed_ranks_are_followed(words: str, meaning: Arguments) -> None:
    assert parse([*shlex.split(words), *RUN]) == Arguments(**{**vars(meaning), "command": RUN})


def test_what_manifests_carry_for_the_sake_of_real_machines_is_accepted() -> None:
    words = (
        "--allow-run-as-root --bind-to none -rank-by slot -q --report-bindings --display-map --prefix /opt/ompi"
    )
    assert parse([*words.split(), *RUN]) == Arguments(command=RUN)


def test_everything_after_the_program_is_the_programs() -> None:
    assert parse(["-np", "2", "perf", "-np", "8", "--unknown"]).command == ("perf", "-np", "8", "--unknown")


def test_a_double_dash_ends_the_flags() -> None:
    assert parse(["-np", "2", "--", "perf"]) == Arguments(processes=2, command=("perf",))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--hosts a b", "--hosts is no flag that this mpirun knows"),
        ("-np", "-np needs a value"),
        ("-mca btl", "-mca needs a value"),
        ("-np 0 x", "-np 0: it must be a whole number"),
        ("-np many x", "-np many: it must be a whole number"),
        ("-np 4", "no program is named"),
        ("--tag-output=yes x", "--tag-output=yes: this flag takes no value"),
        ("--map-by ppr:2:socket x", "--map-by ppr:2:socket: known here are"),
        ("-np 1 a : -np 1 b", "several programs in one job"),
    ],
)
def test_what_is_not_understood_is_named(words: str, complaint: str) -> None:
    with pytest.raises(Misconfigured, match=complaint):
        parse(words.split())
