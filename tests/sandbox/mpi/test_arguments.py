import shlex

import pytest

from imex_dra.base.errors import Misconfigured
from imex_sandbox.mpi.arguments import Arguments, parse

RUN = ("imex", "allreduce")


@pytest.mark.parametrize(
    ("words", "expected"),
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
        ("-wdir /work --tag-output", Arguments(working_directory="/work", tag_output=True)),
        ("-mca btl ^openib --mca pml ob1", Arguments(mca_parameters={"btl": "^openib", "pml": "ob1"})),
    ],
)
def test_flags_for_the_mapping_and_environment_of_ranks(words: str, expected: Arguments) -> None:
    assert parse([*shlex.split(words), *RUN]) == Arguments(**{**vars(expected), "command": RUN})


def test_flags_that_matter_only_on_real_machines_are_accepted_without_effect() -> None:
    words = (
        "--allow-run-as-root --bind-to none -rank-by slot -q --report-bindings --display-map --prefix /opt/ompi"
    )
    assert parse([*words.split(), *RUN]) == Arguments(command=RUN)


def test_flags_of_open_mpi_without_effect_on_the_ranks_are_ignored_and_listed() -> None:
    """As in public manifests for nccl-tests."""
    parsed = parse(["--show-progress", "-np", "4", "--output-filename", "/tmp/x", "--timeout=60", "perf", "-v"])
    assert parsed == Arguments(
        processes=4, ignored=("--show-progress", "--output-filename", "--timeout=60"), command=("perf", "-v")
    )


def test_all_words_after_the_program_are_its_arguments() -> None:
    assert parse(["-np", "2", "perf", "-np", "8", "--unknown"]).command == ("perf", "-np", "8", "--unknown")


def test_a_double_dash_ends_the_flags() -> None:
    assert parse(["-np", "2", "--", "perf"]) == Arguments(processes=2, command=("perf",))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--hosts a b", "this mpirun does not support --hosts. Supported flags: .* -host, "),
        ("-np", "-np requires a value"),
        ("-mca btl", "-mca requires a value"),
        ("-np 0 x", "-np 0: the value must be an integer"),
        ("-np many x", "-np many: the value must be an integer"),
        ("-np 4", "the program is missing"),
        ("--tag-output=yes x", "--tag-output=yes: this flag does not take a value"),
        ("--map-by ppr:2:socket x", "--map-by ppr:2:socket is not supported"),
        ("-np 1 a : -np 1 b", "several programs in one job"),
    ],
)
def test_an_invalid_command_line_is_rejected(words: str, error: str) -> None:
    with pytest.raises(Misconfigured, match=error):
        parse(words.split())
