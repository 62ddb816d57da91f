from imex_sandbox.mpi import environment
from imex_sandbox.mpi.arguments import Arguments
from imex_sandbox.mpi.mapping import Host, map_ranks
from imex_sandbox.softimex.processgroup import RankInfo, read_rank

PLACEMENTS = map_ranks([Host("a", 2), Host("b", 2)], Arguments())


def job_variables(arguments: Arguments, launcher: dict[str, str]) -> dict[str, str]:
    return environment.job_variables(arguments, launcher, PLACEMENTS, 29511)


def test_softimex_programs_find_their_rank_in_the_environment() -> None:
    variables = job_variables(Arguments(), {}) | environment.rank_variables(PLACEMENTS[3])
    assert read_rank(variables) == RankInfo(3, 4, 1, "127.0.0.1", 29511)


def test_a_rank_has_the_variables_of_open_mpi() -> None:
    variables = job_variables(Arguments(), {}) | environment.rank_variables(PLACEMENTS[3])
    open_mpi = {name: value for name, value in variables.items() if name.startswith("OMPI_COMM_WORLD_")}
    assert open_mpi == {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_COMM_WORLD_NODE_RANK": "1",
    }


def test_only_exported_variables_and_those_of_open_mpi_are_passed_to_ranks() -> None:
    launcher = {"NCCL_DEBUG": "INFO", "SECRET": "x", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    variables = job_variables(Arguments(exports=("NCCL_DEBUG", "MODE=fast=yes", "ABSENT")), launcher)
    assert variables["NCCL_DEBUG"] == "INFO"
    assert variables["MODE"] == "fast=yes"
    assert variables["OMPI_ALLOW_RUN_AS_ROOT"] == "1"
    assert not {"SECRET", "ABSENT"} & variables.keys()


def test_exports_that_the_launcher_does_not_have_are_reported() -> None:
    assert environment.missing_exports(Arguments(exports=("A", "B=1", "C")), {"A": "1"}) == ["C"]


def test_exports_have_precedence_over_generated_variables() -> None:
    assert job_variables(Arguments(exports=("MASTER_PORT=4711",)), {})["MASTER_PORT"] == "4711"


def test_mca_flags_have_precedence_over_the_environment() -> None:
    launcher = {"OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10"}
    arguments = Arguments(mca_parameters={"plm_rsh_args": "-p 2222"})
    assert environment.mca_parameters(arguments, launcher) == {"plm_rsh_args": "-p 2222"}
    assert job_variables(arguments, launcher)["OMPI_MCA_plm_rsh_args"] == "-p 2222"
