"""Mutual TLS between daemons: who has no certificate of the right authority and name is not talked to."""

import signal
import socket
import ssl
from collections.abc import Callable

import pytest

from imex_dra.sandbox.kubernetes.certificates import Authority
from imex_dra.softimex import nodemap
from imex_dra.softimex.frames import encode
from imex_dra.softimex.loop import Loop
from imex_dra.softimex.states import LinkState
from imex_dra.softimex.stream import Security, Stream
from tests.softimex.keys import equip
from tests.softimex.rack import VERSION, Rack, eventually

pytestmark = pytest.mark.timeout(300)

MakeRack = Callable[[int], Rack]


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> list[Authority]:
    return [Authority(tmp_path_factory.mktemp(name)) for name in ("one", "two")]


def test_daemons_with_keys_of_one_authority_connect(make_rack: MakeRack, authorities: list[Authority]) -> None:
    rack = make_rack(3)
    for node in rack.nodes:
        equip(node, authorities[0], rack.names[node.slot])
    rack.start()
    rack.nodes[2].kill()
    rack.nodes[2].start()
    rack.until_up()


def test_keys_of_another_authority_are_refused_until_they_are_exchanged(
    make_rack: MakeRack, authorities: list[Authority]
) -> None:
    rack = make_rack(3)
    for node in rack.nodes:
        equip(node, authorities[node.slot == 2], rack.names[node.slot])
        node.start()
    eventually(lambda: rack.letters() == ["CCN", "CCN", "NNC"], seen=rack.letters)
    equip(rack.nodes[2], authorities[0], rack.names[2])
    rack.nodes[2].send(signal.SIGUSR1)
    rack.until_up()


def test_a_daemon_without_encryption_is_refused(make_rack: MakeRack, authorities: list[Authority]) -> None:
    rack = make_rack(2)
    equip(rack.nodes[0], authorities[0], rack.names[0])
    for node in rack.nodes:
        node.start()
    eventually(lambda: rack.nodes[0].state() == rack.nodes[1].state() == "READY\n")
    eventually(lambda: all(node.verbose_log().count("[VERBOSE]") >= 2 for node in rack.nodes))
    eventually(lambda: rack.letters() == ["CN", "NC"], seen=rack.letters)


@pytest.mark.parametrize("has_certificate", [False, True])
def test_a_client_without_a_certificate_of_the_authority_hears_nothing(
    make_rack: MakeRack, authorities: list[Authority], has_certificate: bool
) -> None:
    """It believes the daemon, and says the right words; but the daemon does not believe it."""
    rack = make_rack(2)
    equip(rack.nodes[0], authorities[0], rack.names[0])
    rack.nodes[0].start()
    eventually(lambda: rack.nodes[0].state() == "READY\n")
    context = ssl.create_default_context(cafile=authorities[0].certificate)
    if has_certificate:
        foreign = authorities[1].client(f"stranger-{rack.directory.name}", rack.names[1], [])
        context.load_cert_chain(foreign.certificate, foreign.key)
    hello = {"slot": 1, "instance": "00" * 8, "version": VERSION, "map": nodemap.key(rack.names)}
    plain = socket.create_connection((rack.nodes[0].address, 50000), timeout=60)
    refusal = r"(?i)certificate required|unknown ca|handshake failure|reset|EOF occurred"
    with (
        context.wrap_socket(plain, server_hostname=rack.names[0], do_handshake_on_connect=False) as sock,
        pytest.raises(OSError, match=refusal),
    ):
        ask(sock, encode({"hello": hello}))


def test_a_handshake_may_take_longer_than_a_frame() -> None:
    """On a busy machine; who gave it up early would have all of it to do again, and keep the machine busy."""
    assert [waits_for(30, None), waits_for(2, None)] == [False, True]
    assert [waits_for(31, NoSecurity()), waits_for(29, NoSecurity())] == [False, True]


def waits_for(seconds: float, security: Security | None) -> bool:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = Stream(Loop(), ours, security)
        return not stream.overdue(stream.heard_at + seconds)


class NoSecurity:
    """One whose handshake is never over."""

    def secure(self, sock: socket.socket) -> socket.socket:
        return sock

    def handshake(self, sock: socket.socket) -> None:
        raise BlockingIOError

    def receive(self, sock: socket.socket, most: int) -> bytes:
        raise BlockingIOError

    def send(self, sock: socket.socket, data: bytes) -> int:
        raise BlockingIOError


def ask(sock: ssl.SSLSocket, frame: bytes) -> bytes:
    sock.do_handshake()
    sock.sendall(frame)
    return sock.recv(1000)


def test_a_certificate_for_another_name_is_refused_unless_it_is_expected(
    make_rack: MakeRack, authorities: list[Authority]
) -> None:
    rack = make_rack(2)
    equip(rack.nodes[0], authorities[0], rack.names[0])
    equip(rack.nodes[1], authorities[0], "any-imex")
    for node in rack.nodes:
        node.start()
    rack.until_link(1, 0, LinkState.CONNECTED)
    eventually(lambda: "Hostname mismatch" in rack.nodes[0].verbose_log())
    rack.until_link(0, 1, LinkState.NEVER_CONNECTED)
    rack.nodes[0].kill()
    rack.nodes[0].write_config(IMEX_SECURITY_TARGET_OVERRIDE="any-imex")
    rack.nodes[0].start()
    rack.until_up()


def test_a_missing_key_stops_the_start_and_is_named(make_rack: MakeRack, authorities: list[Authority]) -> None:
    node = make_rack(1).nodes[0]
    equip(node, authorities[0], "imex-test-000")
    (node.root / "IMEX_CLIENT_KEY").unlink()
    result = node.run()
    assert result.returncode == 1
    assert "IMEX_CLIENT_KEY" in result.stderr


def test_keys_that_do_not_work_leave_the_old_ones_in_use(
    make_rack: MakeRack, authorities: list[Authority]
) -> None:
    rack = make_rack(2)
    for node in rack.nodes:
        equip(node, authorities[0], rack.names[node.slot])
    rack.start()
    (rack.nodes[0].root / "IMEX_SERVER_KEY").write_text("nonsense")
    rack.nodes[0].send(signal.SIGUSR1)
    eventually(lambda: "keys not reloaded" in rack.nodes[0].log_text())
    rack.until_up()
