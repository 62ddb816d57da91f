"""How the ctl interprets the replies of the nodes, and how it prints the domain."""

import json
import re
from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from imex_sandbox.softimex.command import DaemonState
from imex_sandbox.softimex.domain import Domain, Node, parse_reply, render_json, render_text
from imex_sandbox.softimex.peerstate import ConnectionState

NOW = datetime(2025, 5, 12, 6, 8, 10, 580123)
C, N, R, V = (
    ConnectionState.CONNECTED,
    ConnectionState.NEVER_CONNECTED,
    ConnectionState.RECOVERING,
    ConnectionState.VERSION_MISMATCH,
)
DOMAIN = Domain(
    (
        Node("172.31.48.81", "172.31.48.81", DaemonState.READY, "570.172", (C, C, N)),
        Node("imex-1", "172.31.48.98", DaemonState.WAITING_FOR_RECOVERY, "NO_GPU", (V, C, R)),
        Node("172.31.49.228", "172.31.49.228", DaemonState.UNAVAILABLE, "", (ConnectionState.INVALID,) * 3),
    )
)
NAMES = {"172.31.48.81": "gpu-0", "172.31.48.98": "imex-1"}


def test_the_text_has_the_layout_of_nvidia_imex_ctl() -> None:
    text = render_text(DOMAIN, NOW, "172.31.48.98", None)
    assert text.startswith("Connectivity Table Legend:\nI - Invalid")
    assert text.endswith(
        "\n\n5/12/2025 06:08:10.580\n"
        "Nodes:\n"
        "Node #0   - 172.31.48.81    - READY                - Version: 570.172\n"
        "Node #1   * imex-1          * WAITING_FOR_RECOVERY - Version: NO_GPU\n"
        "Node #2   - 172.31.49.228   - UNAVAILABLE          - Version:\n"
        "\n"
        " Nodes From\\To  0   1   2\n"
        "       0        C   C   N\n"
        "       1        !V! C   R\n"
        "       2        I   I   I\n"
        "\n"
        "Domain State: DEGRADED"
    )


def test_the_json_has_the_fields_of_nvidia_imex_ctl_and_the_domain_state_last() -> None:
    text = render_json(DOMAIN, NOW, None)
    content = json.loads(text)
    assert list(content) == ["nodes", "timestamp", "status"]
    assert content["timestamp"] == "5/12/2025 06:08:10.580"
    node = content["nodes"]["1"]
    assert {key: node[key] for key in ("status", "host", "hostName", "version", "changed")} == {
        "status": "WAITING_FOR_RECOVERY",
        "host": "imex-1",
        "hostName": "",
        "version": "NO_GPU",
        "changed": True,
    }
    assert node["connections"]["2"] == {"host": "172.31.49.228", "status": "RECOVERING", "changed": True}
    assert re.search(r'\n +"status": "DEGRADED"\n}$', text)


def test_host_names_are_shown_on_request_but_never_in_connections() -> None:
    nodes = json.loads(render_json(DOMAIN, NOW, NAMES))["nodes"]
    assert [nodes[index]["hostName"] for index in "012"] == ["gpu-0", "imex-1", "N/A"]
    assert nodes["0"]["connections"]["1"]["host"] == "172.31.48.98"
    assert "172.31.48.81 (gpu-0) - READY" in render_text(DOMAIN, NOW, "", NAMES)


def test_later_json_marks_what_changed() -> None:
    now = Domain((DOMAIN.nodes[0]._replace(connections=(C, C, C)), *DOMAIN.nodes[1:]))
    node = json.loads(render_json(now, NOW, None, before=DOMAIN))["nodes"]["0"]
    assert not node["changed"]
    assert [node["connections"][index]["changed"] for index in "012"] == [False, False, True]


def test_the_domain_is_up_only_if_all_nodes_are_ready_and_connected() -> None:
    up = Node("a", "a", DaemonState.READY, "1", (C,))
    down = Node("a", "a", DaemonState.UNAVAILABLE, "", (ConnectionState.INVALID,))
    assert Domain((up,)).state.value == "UP"
    assert Domain((up, down)).state.value == "DEGRADED"
    assert Domain((up._replace(connections=(R,)),)).state.value == "DEGRADED"
    assert Domain((down, down)).state.value == "DOWN"


replies = st.recursive(
    st.none() | st.text(max_size=5) | st.integers() | st.sampled_from(["READY", "CONNECTED"]),
    lambda inner: (
        st.dictionaries(st.sampled_from(["state", "version", "connections", "0", "status"]), inner)
        | st.lists(inner, max_size=2)
    ),
)


@given(st.none() | st.dictionaries(st.sampled_from(["state", "version", "connections"]), replies))
def test_any_reply_of_a_node_becomes_a_row_of_the_table(reply: dict[str, object] | None) -> None:
    node = parse_reply("a", "127.0.0.1", reply, 1)
    assert len(node.connections) == 1
