import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_sandbox.softimex import config
from imex_sandbox.softimex.errors import StartError

ROOT = "/node"


def parse(text: str) -> config.Config:
    return config.parse(text, ROOT)[0]


def test_an_empty_file_gives_the_defaults() -> None:
    defaults = parse("")
    assert defaults.log_level == 4
    assert defaults.server_port == 50000
    assert defaults.imex_cmd_port == 50005
    assert defaults.daemonize
    assert defaults.imex_wait_for_quorum == "RECOVERY"
    assert defaults.imex_node_disconnected_grace_time == -1
    assert defaults.imex_node_config_file == "/node/etc/nvidia-imex/nodes_config.cfg"


def test_values_are_read_and_comments_are_ignored() -> None:
    parsed = parse("# SERVER_PORT=1\n\n SERVER_PORT = 50001 \nLOG_FILE_NAME=\nBIND_INTERFACE_IP=fd00::1\n")
    assert (parsed.server_port, parsed.log_file_name, parsed.bind_interface_ip) == (50001, "", "fd00::1")


def test_an_unknown_key_and_an_invalid_line_cause_warnings() -> None:
    _, warnings = config.parse("IMEX_CONN_WAIT_TIMEOUT=3\nnonsense\n", ROOT)
    assert "line 2" in warnings[0]
    assert "IMEX_CONN_WAIT_TIMEOUT" in warnings[1]


def test_keys_without_effect_cause_no_warning() -> None:
    text = "".join(f"{key}=whatever\n" for key in config.WITHOUT_EFFECT)
    assert config.parse(text, ROOT) == (parse(""), [])


@pytest.mark.parametrize(
    "line",
    [
        "LOG_LEVEL=5",
        "LOG_LEVEL=",
        "LOG_FILE_NAME=" + 257 * "x",
        "DAEMONIZE=yes",
        "BIND_INTERFACE_IP=localhost",
        "SERVER_PORT=0",
        "SERVER_PORT=65536",
        "IMEX_WAIT_FOR_QUORUM=MOST",
        "IMEX_AUTH_SOURCE=VAULT",
        "IMEX_CMD_BIND_INTERFACE_IP=300.1.1.1",
        "IMEX_CMD_PORT=http",
        "IMEX_NODE_DISCONNECTED_GRACE_TIME=-2",
    ],
)
def test_an_invalid_value_is_an_error_that_names_the_key(line: str) -> None:
    key, _, value = line.partition("=")
    with pytest.raises(StartError, match=rf"^{key} is '{value}'.* must be "):
        parse(line)


def test_encryption_requires_all_key_and_certificate_files() -> None:
    text = "IMEX_ENABLE_AUTH_ENCRYPTION=1\nIMEX_AUTH_SOURCE=FILE\nIMEX_SERVER_KEY=/k\n"
    with pytest.raises(StartError, match="IMEX_SERVER_CERT is empty"):
        parse(text)


@pytest.mark.parametrize("line", ["IMEX_AUTH_ENCRYPTION_MODE=GSS_AUTH_ONLY", "IMEX_AUTH_SOURCE=ENV_VAL"])
def test_encryption_that_only_the_original_supports_is_refused(line: str) -> None:
    with pytest.raises(StartError, match=line.partition("=")[0]):
        parse(f"IMEX_ENABLE_AUTH_ENCRYPTION=1\nIMEX_AUTH_SOURCE=FILE\n{line}\n")
    assert parse(line)


KEYS = st.sampled_from([*config.RULES, *config.WITHOUT_EFFECT, "OTHER"])


@given(st.lists(st.tuples(KEYS, st.text(max_size=20)), max_size=8))
def test_any_text_is_a_valid_configuration_or_a_start_error(lines: list[tuple[str, str]]) -> None:
    try:
        parsed, _ = config.parse("\n".join(f"{key}={value}" for key, value in lines), ROOT)
    except StartError:
        return
    assert 0 < parsed.server_port < 65536
    assert 0 <= parsed.log_level <= 4


def test_a_missing_file_is_an_error_that_names_it() -> None:
    with pytest.raises(StartError, match="/does/not/exist"):
        config.read("/does/not/exist", ROOT)
