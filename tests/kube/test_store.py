"""The store against a model of the server: a history, a watch somewhere in it, and answers that come late."""

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from imex_dra.api.meta import Key, ObjectMeta, key_of
from imex_dra.api.views import Pod, PodSpec
from imex_dra.kube.store import Store

NAMES = st.sampled_from("abc")
NODES = st.sampled_from(["", "n1", "n2"])


def node_of(pod: Pod) -> list[str]:
    return [pod.spec.node_name] if pod.spec.node_name else []


def version_of(pod: Pod) -> int:
    return int(pod.metadata.resource_version)


class StoreMachine(RuleBasedStateMachine):
    """What the store must show of a name: the newest of what the watch and our own answers said of it."""

    answers: Bundle[Pod] = Bundle("answers")

    @initialize()
    def start(self) -> None:
        self.store: Store[Pod] = Store(node=node_of)
        self.store.subscribe(self.hear)
        self.heard: dict[Key, Pod] = {}
        self.ended: set[str] = set()
        self.version = 0
        self.server: dict[Key, Pod] = {}
        self.history: list[tuple[str, Pod]] = []
        self.told = 0
        """How many events of the history the watch has brought."""
        self.watched: dict[Key, Pod] = {}
        self.answered: list[Pod] = []

    def hear(self, old: Pod | None, new: Pod | None) -> None:
        """Whoever only listens must end up with the same objects, and is never told an untruth."""
        subject = new or old
        assert subject is not None
        key = key_of(subject)
        assert self.heard.get(key) == old
        assert old is None or new is None or old.metadata.uid == new.metadata.uid
        assert self.store.get(key) == new
        if new is None:
            del self.heard[key]
            self.ended.add(subject.metadata.uid)
        else:
            assert new.metadata.uid not in self.ended, "came back from the dead"
            assert old is None or version_of(old) < version_of(new), "went back in time"
            self.heard[key] = new

    def change(self, name: str, node: str) -> Pod:
        """On the server: created, or changed if it is there."""
        self.version += 1
        live = self.server.get(Key("ns", name))
        uid = live.metadata.uid if live else f"{name}-{self.version}"
        meta = ObjectMeta(name=name, namespace="ns", uid=uid, resource_version=str(self.version))
        pod = Pod(meta, PodSpec(node_name=node))
        self.server[key_of(pod)] = pod
        self.history.append(("MODIFIED" if live else "ADDED", pod))
        return pod

    @rule(name=NAMES, node=NODES)
    def somebody_writes(self, name: str, node: str) -> None:
        self.change(name, node)

    @rule(target=answers, name=NAMES, node=NODES)
    def we_write(self, name: str, node: str) -> Pod:
        return self.change(name, node)

    @rule(name=NAMES)
    def somebody_deletes(self, name: str) -> None:
        if live := self.server.pop(Key("ns", name), None):
            self.version += 1
            meta = ObjectMeta(name=name, namespace="ns", uid=live.metadata.uid, resource_version=str(self.version))
            self.history.append(("DELETED", Pod(meta, live.spec)))

    @rule(answer=consumes(answers))
    def our_answer_comes(self, answer: Pod) -> None:
        self.answered.append(answer)
        self.store.upsert(answer)

    @precondition(lambda self: self.told < len(self.history))
    @rule(many=st.integers(1, 3))
    def the_watch_goes_on(self, many: int) -> None:
        for kind, pod in self.history[self.told : self.told + many]:
            if kind == "DELETED":
                self.watched.pop(key_of(pod))
                self.store.remove(pod)
            else:
                self.watched[key_of(pod)] = pod
                self.store.upsert(pod)
            self.store.advance(pod.metadata.resource_version)
            self.told += 1

    @rule(behind=st.integers(0, 2))
    def the_server_is_listed_anew(self, behind: int) -> None:
        """As it was a moment ago: what happened since comes by the watch."""
        self.told = max(self.told, len(self.history) - behind)
        self.watched = {}
        for kind, pod in self.history[: self.told]:
            if kind == "DELETED":
                del self.watched[key_of(pod)]
            else:
                self.watched[key_of(pod)] = pod
        self.store.replace(self.watched.values(), str(self.reached))

    @property
    def reached(self) -> int:
        return version_of(self.history[self.told - 1][1]) if self.told else 0

    def expected(self) -> dict[Key, Pod]:
        ahead = [answer for answer in self.answered if version_of(answer) > self.reached]
        return self.watched | {key_of(answer): answer for answer in sorted(ahead, key=version_of)}

    @invariant()
    def holds_the_newest_of_everything(self) -> None:
        expected = self.expected()
        assert {key_of(pod): pod for pod in self.store.values()} == expected
        assert len(self.store) == len(expected)
        assert self.heard == expected

    @invariant()
    def indexes_list_exactly_what_they_say(self) -> None:
        for node in ("n1", "n2"):
            expected = {key for key, pod in self.expected().items() if pod.spec.node_name == node}
            assert {key_of(pod) for pod in self.store.by("node", node)} == expected

    def teardown(self) -> None:
        """In the end the watch has brought everything, and the store is what the server is."""
        if self.told < len(self.history):
            self.the_watch_goes_on(len(self.history))
        assert {key_of(pod): pod for pod in self.store.values()} == self.server


TestStore = StoreMachine.TestCase


def pod(name: str, version: int, uid: str = "u") -> Pod:
    return Pod(ObjectMeta(name=name, namespace="ns", uid=uid, resource_version=str(version)))


def listening(store: Store[Pod]) -> list[tuple[Pod | None, Pod | None]]:
    changes: list[tuple[Pod | None, Pod | None]] = []
    store.subscribe(lambda old, new: changes.append((old, new)))
    return changes


def test_a_replace_is_silent_about_what_did_not_change() -> None:
    store: Store[Pod] = Store()
    store.replace([pod("a", 1), pod("b", 2)], "2")
    changes = listening(store)
    store.replace([pod("a", 1), pod("b", 3)], "3")
    assert changes == [(pod("b", 2), pod("b", 3))]


def test_an_object_made_anew_is_heard_of_as_gone_and_as_new() -> None:
    store: Store[Pod] = Store()
    store.upsert(pod("a", 1, uid="old"))
    changes = listening(store)
    store.replace([pod("a", 2, uid="new")], "2")
    assert changes == [(pod("a", 1, uid="old"), None), (None, pod("a", 2, uid="new"))]


def test_forgetting_an_object_spares_a_namesake_that_came_later() -> None:
    store: Store[Pod] = Store()
    store.upsert(pod("a", 2, uid="new"))
    store.remove(pod("a", 1, uid="old"))
    assert store.values() == [pod("a", 2, uid="new")]


def test_a_server_restored_from_a_backup_is_believed() -> None:
    store: Store[Pod] = Store()
    store.replace([pod("a", 7), pod("b", 8)], "9")
    store.upsert(pod("c", 11))
    store.replace([pod("a", 3)], "5")
    assert store.values() == [pod("a", 3)]
    store.upsert(pod("a", 6))
    assert store.values() == [pod("a", 6)]


def test_an_answer_that_the_watch_overtook_tells_nothing_even_of_what_we_deleted_since() -> None:
    store: Store[Pod] = Store()
    store.upsert(pod("a", 5))
    store.advance("5")
    store.remove(pod("a", 5))
    store.upsert(pod("a", 5))
    assert store.values() == []
