from imex_dra.sandbox.mpi import environment
from imex_dra.sandbox.mpi.arguments import Arguments
from imex_dra.sandbox.mpi.layout import Host, place
from imex_dra.softimex import ranks

PLACEMENTS = place([Host("a", 2), Host("b", 2)], Arguments())


def shared(arguments: Arguments, launcher: dict[str, str]) -> dict[str, str]:
    return environment.shared(arguments, launcher, PLACEMENTS, 29511)


def test_a_rank_knows_its_place_as_our_programs_read_it() -> None:
    variables = shared(Arguments(), {}) | environment.own(PLACEMENTS[3])
    assert ranks.place(variables) == ranks.Place(3, 4, 1, "127.0.0.1", 29511)


def test_a_rank_knows_its_place_in_open_mpis_words() -> None:
    variables = shared(Arguments(), {}) | environment.own(PLACEMENTS[3])
    place = {name: value for name, value in variables.items() if name.startswith("OMPI_COMM_WORLD_")}
    assert place == {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_COMM_WORLD_NODE_RANK": "1",
    }


def test_of_the_launchers_environment_only_what_was_asked_for_is_handed_on() -> None:
    launcher = {"NCCL_DEBUG": "INFO", "SECRET": "x", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    variables = shared(Arguments(exports=("NCCL_DEBUG", "MODE=fast=yes", "ABSENT")), launcher)
    assert variables["NCCL_DEBUG"] == "INFO"
    assert variables["MODE"] == "fast=yes"
    assert variables["OMPI_ALLOW_RUN_AS_ROOT"] == "1"
    assert not {"SECRET", "ABSENT"} & variables.keys()


def test_names_that_the_launcher_lacks_are_known() -> None:
    assert environment.unset(Arguments(exports=("A", "B=1", "C")), {"A": "1"}) == ["C"]


def test_what_is_exported_wins_over_our_own_choice() -> None:
    assert shared(Arguments(exports=("MASTER_PORT=4711",)), {})["MASTER_PORT"] == "4711"


def test_settings_of_the_command_line_win_over_the_operators() -> None:
    launcher = {"OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10"}
    arguments = Arguments(parameters={"plm_rsh_args": "-p 2222"})
    assert environment.parameters(arguments, launcher) == {"plm_rsh_args": "-p 2222"}
    assert shared(arguments, launcher)["OMPI_MCA_plm_rsh_args"] == "-p 2222"
