"""The loop outlives whatever its actions do."""

import socket

from imex_dra.softimex.loop import READ, Loop


def test_a_fault_is_reported_and_ends_nothing_but_its_action() -> None:
    loop, faults, served = Loop(), list[str](), list[str]()
    loop.on_fault = faults.append
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop.watch(ours, READ, lambda _: served.append("socket" if ours.recv(1) == b"x" else str(1 / 0)))
        loop.call_later(0, lambda: served.append(str(1 / 0)))
        loop.call_later(0, lambda: served.append("timer"))
        theirs.send(b"yx")
        loop.step()
        loop.step()
    loop.close()
    assert served == ["timer", "socket"]
    assert ["ZeroDivisionError" in fault for fault in faults] == [True, True]
