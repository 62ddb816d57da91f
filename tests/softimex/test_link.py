"""The state of a connection, against a model that remembers everything."""

from hypothesis import given
from hypothesis import strategies as st

from imex_dra.softimex import link as links
from imex_dra.softimex.identity import Identity
from imex_dra.softimex.link import Change, Link
from imex_dra.softimex.states import LinkState

OURS = Identity(0, "ours", "580.1", "map")
PEER = Identity(1, "one", "580.1", "map")


def connect(link: Link | None = None, instance: str = "one") -> Link:
    return links.greeted(link or Link(), OURS, PEER._replace(instance=instance), accepted=True).link


def test_a_new_link_was_never_connected() -> None:
    assert Link().state is LinkState.NEVER_CONNECTED
    assert links.lost(Link(), 1, 0) == Change(Link())


def test_the_same_instance_may_come_back_within_the_grace_time() -> None:
    gone = links.lost(connect(), now=10, grace=5)
    assert (gone.link.state, gone.cleanup) == (LinkState.RECOVERING, False)
    assert not links.waited(gone.link, 14.9, 5).cleanup
    back = links.greeted(gone.link, OURS, PEER, accepted=True)
    assert (back.link.state, back.cleanup) == (LinkState.CONNECTED, False)


def test_the_grace_time_ends_with_one_cleanup() -> None:
    gone = links.lost(connect(), now=10, grace=5).link
    given_up = links.waited(gone, 15, 5)
    assert (given_up.link.state, given_up.cleanup) == (LinkState.DISCONNECTED, True)
    assert links.waited(given_up.link, 99, 5) == Change(given_up.link)


def test_a_grace_time_of_zero_cleans_up_at_once_and_of_minus_one_never() -> None:
    assert links.lost(connect(), 10, 0).cleanup
    assert not links.waited(links.lost(connect(), 10, links.FOREVER).link, 1e9, links.FOREVER).cleanup


def test_another_instance_is_cleaned_up_at_once() -> None:
    gone = links.lost(connect(), 10, links.FOREVER).link
    back = links.greeted(gone, OURS, PEER._replace(instance="two"), accepted=True)
    assert (back.link.state, back.link.instance, back.cleanup) == (LinkState.CONNECTED, "two", True)


def test_a_goodbye_is_cleaned_up_at_once() -> None:
    left = links.left(connect())
    assert (left.link.state, left.cleanup) == (LinkState.DISCONNECTED, True)


def test_a_version_mismatch_heals_when_the_peer_returns_with_ours() -> None:
    other = links.greeted(Link(), OURS, PEER._replace(version="570.1"), accepted=False).link
    assert (other.state, other.barred) == (LinkState.VERSION_MISMATCH, False)
    assert connect(other, "two").state is LinkState.CONNECTED


def test_another_map_bars_the_peer_and_a_refusal_does_not() -> None:
    other = links.greeted(Link(), OURS, PEER._replace(map_key="other"), accepted=False).link
    assert (other.state, other.barred) == (LinkState.NODE_MAP_MISMATCH, True)
    refused = links.greeted(Link(), OURS, PEER, accepted=False).link
    assert (refused.state, refused.barred) == (LinkState.NODE_MAP_MISMATCH, False)


events = st.one_of(
    st.tuples(st.just("greeted"), st.sampled_from(["one", "two", "three"])),
    st.tuples(st.sampled_from(["lost", "left", "waited"]), st.just("")),
)


@given(st.lists(events), st.sampled_from([links.FOREVER, 0, 1, 3]))
def test_what_was_imported_is_dropped_exactly_when_it_must_be(events: list[tuple[str, str]], grace: int) -> None:
    """One second per event; the model knows what is imported, and from which instance."""
    link, imported, lost_at = Link(), "", None
    for now, (event, instance) in enumerate(events):
        if event == "greeted":
            change = links.greeted(link, OURS, PEER._replace(instance=instance), accepted=True)
            must = imported not in ("", instance)
            imported, lost_at = instance, None
        elif event == "left":
            change = links.left(link)
            must, imported, lost_at = bool(imported), "", None
        else:
            change = links.lost(link, now, grace) if event == "lost" else links.waited(link, now, grace)
            if event == "lost" and link.state is LinkState.CONNECTED:
                lost_at = now
            must = bool(imported) and lost_at is not None and grace >= 0 and now - lost_at >= grace
            imported = "" if must else imported
        assert change.cleanup == must
        link = change.link
        assert bool(link.instance) == bool(imported)
