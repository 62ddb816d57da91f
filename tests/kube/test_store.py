"""The store against a model: the same changes applied to a dict."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from imex_dra.api.meta import Key, ObjectMeta, key_of
from imex_dra.api.views import Pod, PodSpec
from imex_dra.kube.store import Store

NAMES = st.sampled_from("abcd")
NODES = st.sampled_from(["", "n1", "n2"])


def node_of(pod: Pod) -> list[str]:
    return [pod.spec.node_name] if pod.spec.node_name else []


class StoreMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.store: Store[Pod] = Store(node=node_of)
        self.model: dict[Key, Pod] = {}
        self.heard: dict[Key, Pod] = {}
        self.version = 0
        self.store.subscribe(self.hear)

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
        else:
            self.heard[key] = new

    def pod(self, name: str, uid: int, node: str) -> Pod:
        self.version += 1
        meta = ObjectMeta(name=name, namespace="ns", uid=f"{name}-{uid}", resource_version=str(self.version))
        return Pod(meta, PodSpec(node_name=node))

    @rule(name=NAMES, uid=st.integers(0, 1), node=NODES)
    def upsert(self, name: str, uid: int, node: str) -> None:
        pod = self.pod(name, uid, node)
        self.model[key_of(pod)] = pod
        self.store.upsert(pod)

    @rule(name=NAMES, uid=st.integers(0, 1))
    def remove(self, name: str, uid: int) -> None:
        pod = self.pod(name, uid, "")
        current = self.model.get(key_of(pod))
        if current and current.metadata.uid == pod.metadata.uid:
            del self.model[key_of(pod)]
        self.store.remove(pod)

    @rule(listed=st.dictionaries(NAMES, st.tuples(st.integers(0, 1), NODES)), keep=st.sets(NAMES))
    def replace(self, listed: dict[str, tuple[int, str]], keep: set[str]) -> None:
        fresh = {key_of(p): p for p in (self.pod(name, uid, node) for name, (uid, node) in listed.items())}
        fresh |= {key: pod for key, pod in self.model.items() if key.name in keep}
        self.model = fresh
        self.store.replace(fresh.values())

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert {key_of(pod): pod for pod in self.store.values()} == self.model
        assert len(self.store) == len(self.model)
        assert self.heard == self.model

    @invariant()
    def indexes_list_exactly_what_they_say(self) -> None:
        for node in ("n1", "n2"):
            expected = {key for key, pod in self.model.items() if pod.spec.node_name == node}
            assert {key_of(pod) for pod in self.store.by("node", node)} == expected


TestStore = StoreMachine.TestCase


def pod(name: str, version: int, uid: str = "u") -> Pod:
    return Pod(ObjectMeta(name=name, namespace="ns", uid=uid, resource_version=str(version)))


def test_a_replace_is_silent_about_what_did_not_change() -> None:
    store: Store[Pod] = Store()
    store.replace([pod("a", 1), pod("b", 2)])
    changes: list[tuple[Pod | None, Pod | None]] = []
    store.subscribe(lambda old, new: changes.append((old, new)))
    store.replace([pod("a", 1), pod("b", 3)])
    assert changes == [(pod("b", 2), pod("b", 3))]


def test_an_object_made_anew_is_heard_of_as_gone_and_as_new() -> None:
    store: Store[Pod] = Store()
    store.upsert(pod("a", 1, uid="old"))
    changes: list[tuple[Pod | None, Pod | None]] = []
    store.subscribe(lambda old, new: changes.append((old, new)))
    store.replace([pod("a", 2, uid="new")])
    assert changes == [(pod("a", 1, uid="old"), None), (None, pod("a", 2, uid="new"))]
