"""Mutual TLS: a daemon communicates only with peers whose certificate has the right authority and name."""

import signal
import socket
import ssl
from collections.abc import Callable

import pytest

from imex_sandbox.kubernetes.certificates import Authority
from imex_sandbox.softimex import nodemap
from imex_sandbox.softimex.frames import encode
from imex_sandbox.softimex.peerstate import ConnectionState
from tests.sandbox.softimex.rack import VERSION, Rack
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)

MakeRack = Callable[[int], Rack]


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> list[Authority]:
    return [Authority(tmp_path_factory.mktemp(name)) for name in ("one", "two")]


def test_daemons_with_certificates_of_one_authority_connect(
    make_rack: MakeRack, authorities: list[Authority]
) -> None:
    rack = make_rack(3)
    for node in rack.nodes:
        node.enable_tls(authorities[0], rack.names[node.index])
    rack.start()
    rack.nodes[2].kill()
    rack.nodes[2].start()
    rack.until_up()


def test_a_daemon_with_a_certificate_of_another_authority_is_refused_until_its_keys_are_replaced(
    make_rack: MakeRack, authorities: list[Authority]
) -> None:
    rack = make_rack(3)
    for node in rack.nodes:
        node.enable_tls(authorities[node.index == 2], rack.names[node.index])
        node.start()
    rack.until_letters("CCN", "CCN", "NNC")
    rack.nodes[2].enable_tls(authorities[0], rack.names[2])
    rack.nodes[2].send(signal.SIGUSR1)
    rack.until_up()


def test_a_daemon_without_encryption_is_refused(make_rack: MakeRack, authorities: list[Authority]) -> None:
    rack = make_rack(2)
    rack.nodes[0].enable_tls(authorities[0], rack.names[0])
    for node in rack.nodes:
        node.start()
    for node in rack.nodes:
        node.until_ready()
    until(lambda: all(node.verbose_log().count("[VERBOSE]") >= 2 for node in rack.nodes))
    rack.until_letters("CN", "NC")


@pytest.mark.parametrize("has_certificate", [False, True])
def test_a_client_without_a_certificate_of_the_authority_gets_no_response(
    make_rack: MakeRack, authorities: list[Authority], has_certificate: bool
) -> None:
    """The client trusts the daemon and sends a valid handshake, but the daemon does not trust the client."""
    rack = make_rack(2)
    rack.nodes[0].enable_tls(authorities[0], rack.names[0])
    rack.nodes[0].start()
    rack.nodes[0].until_ready()
    context = ssl.create_default_context(cafile=authorities[0].certificate)
    if has_certificate:
        untrusted = authorities[1].client(f"untrusted-{rack.directory.name}", rack.names[1], [])
        context.load_cert_chain(untrusted.certificate, untrusted.key)
    hello = {"index": 1, "instance": "00" * 8, "version": VERSION, "map": nodemap.map_key(rack.names)}
    plain = socket.create_connection((rack.nodes[0].address, 50000), timeout=60)
    refusal = r"(?i)certificate required|unknown ca|handshake failure|reset|Broken pipe|EOF occurred"
    with (
        context.wrap_socket(plain, server_hostname=rack.names[0], do_handshake_on_connect=False) as sock,
        pytest.raises(OSError, match=refusal),
    ):
        handshake_and_send(sock, encode({"hello": hello}))


def handshake_and_send(sock: ssl.SSLSocket, frame: bytes) -> bytes:
    sock.do_handshake()
    sock.sendall(frame)
    return sock.recv(1000)


def test_a_certificate_with_another_name_is_refused_without_a_target_override(
    make_rack: MakeRack, authorities: list[Authority]
) -> None:
    rack = make_rack(2)
    rack.nodes[0].enable_tls(authorities[0], rack.names[0])
    rack.nodes[1].enable_tls(authorities[0], "any-imex")
    for node in rack.nodes:
        node.start()
    rack.until_connection(1, 0, ConnectionState.CONNECTED)
    until(lambda: "Hostname mismatch" in rack.nodes[0].verbose_log())
    rack.until_connection(0, 1, ConnectionState.NEVER_CONNECTED)
    rack.nodes[0].kill()
    rack.nodes[0].write_config(IMEX_SECURITY_TARGET_OVERRIDE="any-imex")
    rack.nodes[0].start()
    rack.until_up()


def test_a_missing_key_stops_the_start_with_an_error_that_names_it(
    make_rack: MakeRack, authorities: list[Authority]
) -> None:
    node = make_rack(1).nodes[0]
    node.enable_tls(authorities[0], "imex-test-000")
    (node.root / "IMEX_CLIENT_KEY").unlink()
    result = node.run()
    assert result.returncode == 1
    assert "IMEX_CLIENT_KEY" in result.stderr


def test_invalid_new_keys_leave_the_current_keys_in_use(make_rack: MakeRack, authorities: list[Authority]) -> None:
    rack = make_rack(2)
    for node in rack.nodes:
        node.enable_tls(authorities[0], rack.names[node.index])
    rack.start()
    (rack.nodes[0].root / "IMEX_SERVER_KEY").write_text("nonsense")
    rack.nodes[0].send(signal.SIGUSR1)
    until(lambda: "keys not reloaded" in rack.nodes[0].log_text())
    rack.until_up()
