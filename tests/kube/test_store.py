"""The store against a model of the API server: a history, a watch that follows it, and late responses."""

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
    """For each name, the store must contain the newest version that the watch or a response has delivered."""

    responses: Bundle[Pod] = Bundle("responses")

    @initialize()
    def start(self) -> None:
        self.store: Store[Pod] = Store(node=node_of)
        self.store.subscribe(self.notified)
        self.replica: dict[Key, Pod] = {}
        self.deleted: set[str] = set()
        self.version = 0
        self.server: dict[Key, Pod] = {}
        self.history: list[tuple[str, Pod]] = []
        self.delivered = 0
        """How many events of the history the watch has delivered."""
        self.watched: dict[Key, Pod] = {}
        self.received: list[Pod] = []

    def notified(self, old: Pod | None, new: Pod | None) -> None:
        """A subscriber that applies the notifications must have the same objects as the store."""
        subject = new or old
        assert subject is not None
        key = key_of(subject)
        assert self.replica.get(key) == old
        assert old is None or new is None or old.metadata.uid == new.metadata.uid
        assert self.store.get(key) == new
        if new is None:
            del self.replica[key]
            self.deleted.add(subject.metadata.uid)
        else:
            assert new.metadata.uid not in self.deleted, "a deleted object came back"
            assert old is None or version_of(old) < version_of(new), "replaced by an older version"
            self.replica[key] = new

    def change(self, name: str, node: str) -> Pod:
        """Creates the Pod on the server, or changes it if it exists."""
        self.version += 1
        live = self.server.get(Key("ns", name))
        uid = live.metadata.uid if live else f"{name}-{self.version}"
        meta = ObjectMeta(name=name, namespace="ns", uid=uid, resource_version=str(self.version))
        pod = Pod(meta, PodSpec(node_name=node))
        self.server[key_of(pod)] = pod
        self.history.append(("MODIFIED" if live else "ADDED", pod))
        return pod

    @rule(name=NAMES, node=NODES)
    def another_client_writes(self, name: str, node: str) -> None:
        self.change(name, node)

    @rule(target=responses, name=NAMES, node=NODES)
    def we_write(self, name: str, node: str) -> Pod:
        return self.change(name, node)

    @rule(name=NAMES)
    def another_client_deletes(self, name: str) -> None:
        if live := self.server.pop(Key("ns", name), None):
            self.version += 1
            meta = ObjectMeta(name=name, namespace="ns", uid=live.metadata.uid, resource_version=str(self.version))
            self.history.append(("DELETED", Pod(meta, live.spec)))

    @rule(response=consumes(responses))
    def a_response_arrives(self, response: Pod) -> None:
        self.received.append(response)
        self.store.upsert(response)

    @precondition(lambda self: self.delivered < len(self.history))
    @rule(many=st.integers(1, 3))
    def the_watch_delivers(self, many: int) -> None:
        for kind, pod in self.history[self.delivered : self.delivered + many]:
            if kind == "DELETED":
                self.watched.pop(key_of(pod))
                self.store.remove(pod)
            else:
                self.watched[key_of(pod)] = pod
                self.store.upsert(pod)
            self.store.advance(pod.metadata.resource_version)
            self.delivered += 1

    @rule(behind=st.integers(0, 2))
    def the_reflector_lists_again(self, behind: int) -> None:
        """The list may be slightly old; later changes come through the watch."""
        self.delivered = max(self.delivered, len(self.history) - behind)
        self.watched = {}
        for kind, pod in self.history[: self.delivered]:
            if kind == "DELETED":
                del self.watched[key_of(pod)]
            else:
                self.watched[key_of(pod)] = pod
        self.store.replace(self.watched.values(), str(self.watched_version))

    @property
    def watched_version(self) -> int:
        return version_of(self.history[self.delivered - 1][1]) if self.delivered else 0

    def expected(self) -> dict[Key, Pod]:
        newer = [response for response in self.received if version_of(response) > self.watched_version]
        return self.watched | {key_of(response): response for response in sorted(newer, key=version_of)}

    @invariant()
    def the_store_and_its_subscriber_have_the_newest_versions(self) -> None:
        expected = self.expected()
        assert {key_of(pod): pod for pod in self.store.values()} == expected
        assert len(self.store) == len(expected)
        assert self.replica == expected

    @invariant()
    def an_index_lists_exactly_the_matching_objects(self) -> None:
        for node in ("n1", "n2"):
            expected = {key for key, pod in self.expected().items() if pod.spec.node_name == node}
            assert {key_of(pod) for pod in self.store.by("node", node)} == expected

    def teardown(self) -> None:
        """After the watch has delivered everything, the store equals the server."""
        if self.delivered < len(self.history):
            self.the_watch_delivers(len(self.history))
        assert {key_of(pod): pod for pod in self.store.values()} == self.server


TestStore = StoreMachine.TestCase


def pod(name: str, version: int, uid: str = "u") -> Pod:
    return Pod(ObjectMeta(name=name, namespace="ns", uid=uid, resource_version=str(version)))


def record_changes(store: Store[Pod]) -> list[tuple[Pod | None, Pod | None]]:
    changes: list[tuple[Pod | None, Pod | None]] = []
    store.subscribe(lambda old, new: changes.append((old, new)))
    return changes


def test_a_replace_notifies_of_changed_objects_only() -> None:
    store: Store[Pod] = Store()
    store.replace([pod("a", 1), pod("b", 2)], "2")
    changes = record_changes(store)
    store.replace([pod("a", 1), pod("b", 3)], "3")
    assert changes == [(pod("b", 2), pod("b", 3))]


def test_a_recreated_object_is_notified_as_a_deletion_and_an_addition() -> None:
    store: Store[Pod] = Store()
    store.upsert(pod("a", 1, uid="old"))
    changes = record_changes(store)
    store.replace([pod("a", 2, uid="new")], "2")
    assert changes == [(pod("a", 1, uid="old"), None), (None, pod("a", 2, uid="new"))]


def test_removing_an_object_keeps_a_recreated_one_of_the_same_name() -> None:
    store: Store[Pod] = Store()
    store.upsert(pod("a", 2, uid="new"))
    store.remove(pod("a", 1, uid="old"))
    assert store.values() == [pod("a", 2, uid="new")]


def test_a_list_from_a_restored_backup_replaces_newer_versions() -> None:
    store: Store[Pod] = Store()
    store.replace([pod("a", 7), pod("b", 8)], "9")
    store.upsert(pod("c", 11))
    store.replace([pod("a", 3)], "5")
    assert store.values() == [pod("a", 3)]
    store.upsert(pod("a", 6))
    assert store.values() == [pod("a", 6)]


def test_a_late_response_does_not_bring_back_a_deleted_object() -> None:
    store: Store[Pod] = Store()
    store.upsert(pod("a", 5))
    store.advance("5")
    store.remove(pod("a", 5))
    store.upsert(pod("a", 5))
    assert store.values() == []
