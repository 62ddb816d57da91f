"""What users do: ComputeDomains and pods come and go."""

import random
from functools import partial

from imex_sandbox.embedded.kinds import PODS
from imex_sandbox.embedded.storage import Key, Stored
from imex_sandbox.simulation.cluster import USERS, SimulatedCluster
from imex_sandbox.simulation.kinds import DOMAINS
from imex_sandbox.simulation.undos import Undos

_MAX_DOMAINS = 6
_MAX_PODS = 16


class Users:
    def __init__(self, cluster: SimulatedCluster, undos: Undos) -> None:
        self._cluster = cluster
        self._undos = undos
        self._created = 0

    def create_domain(self, chance: random.Random) -> str:
        if len(self._domains()) >= _MAX_DOMAINS:
            return ""
        self._created += 1
        name = f"job{self._created}"
        annotations = {"imex-dra.io/readiness": "members"} if chance.random() < 0.15 else {}
        metadata = {"name": name, "annotations": annotations}
        self._cluster.objects.create(DOMAINS, USERS, {"metadata": metadata, "spec": {"numNodes": 0}})
        return f"create ComputeDomain {name}" + (" that waits for its peers" if annotations else "")

    def run_short_job(self, chance: random.Random) -> str:
        """A ComputeDomain whose pods are created with it, and which is gone before or soon after they run."""
        if len(self._domains()) >= _MAX_DOMAINS or len(self._pods()) >= _MAX_PODS:
            return ""
        self._created += 1
        key = Key(USERS, f"job{self._created}")
        self._cluster.objects.create(DOMAINS, USERS, {"metadata": {"name": key.name}, "spec": {"numNodes": 0}})
        self._create_pods(key.name, chance.choice((2, 3, 4)))
        end = chance.choice((self._release, self._delete_domain, self._force_delete_domain))
        self._undos.later(chance.choice((5.0, 30.0, 90.0)), chance, lambda: end(key, chance))
        return f"run ComputeDomain {key.name} for a moment"

    def cancel_starting_job(self, chance: random.Random) -> str:
        """A ComputeDomain is released while its pods start, and what their nodes read comes late."""
        if len(self._domains()) >= _MAX_DOMAINS or len(self._pods()) >= _MAX_PODS:
            return ""
        self._created += 1
        key = Key(USERS, f"job{self._created}")
        self._cluster.objects.create(DOMAINS, USERS, {"metadata": {"name": key.name}, "spec": {"numNodes": 0}})
        self._create_pods(key.name, 4)
        for node in self._cluster.nodes.values():
            for program in node.running():
                program.link.stragglers = 0.5
                self._undos.later(20.0, chance, partial(program.link.reset, "stragglers"))
        self._undos.later(6.0, chance, lambda: self._release(key, chance))
        return f"release ComputeDomain {key.name} while its pods start"

    def create_pod(self, chance: random.Random) -> str:
        domains = [
            key.name
            for key in self._domains()
            if not self._cluster.objects.get(DOMAINS, key).document["metadata"].get("deletionTimestamp")
        ]
        if not domains or len(self._pods()) >= _MAX_PODS:
            return ""
        names = self._create_pods(chance.choice(domains), chance.choice((1, 1, 2, 4)))
        return f"create pods {', '.join(names)}"

    def _create_pods(self, domain: str, count: int) -> list[str]:
        names = []
        for _ in range(count):
            self._created += 1
            names.append(f"{domain}-{self._created}")
            spec = {"resourceClaims": [{"name": "imex", "resourceClaimTemplateName": domain}]}
            self._cluster.objects.create(PODS, USERS, {"metadata": {"name": names[-1]}, "spec": spec})
        return names

    def delete_pod(self, chance: random.Random) -> str:
        return self._delete_pod(chance, "delete", {})

    def force_delete_pod(self, chance: random.Random) -> str:
        return self._delete_pod(chance, "force-delete", {"gracePeriodSeconds": 0})

    def _delete_pod(self, chance: random.Random, verb: str, options: dict[str, int]) -> str:
        pods = self._pods()
        if not pods:
            return ""
        key = chance.choice(pods)
        self._cluster.objects.delete(PODS, key, options)
        return f"{verb} pod {key.name}"

    def delete_domain(self, chance: random.Random) -> str:
        domains = self._domains()
        if not domains:
            return ""
        key = chance.choice(domains)
        self._delete_domain(key, chance)
        return f"delete ComputeDomain {key.name} and its pods"

    def _delete_domain(self, key: Key, chance: random.Random, **options: int) -> None:
        if self._cluster.storage.get(DOMAINS, key) is not None:
            self._cluster.objects.delete(DOMAINS, key, {})
            for pod in self._pods_of(key.name):
                self._cluster.objects.delete(PODS, pod, options)

    def _force_delete_domain(self, key: Key, chance: random.Random) -> None:
        self._delete_domain(key, chance, gracePeriodSeconds=0)

    def release_domain(self, chance: random.Random) -> str:
        """While its pods run."""
        domains = self._domains()
        if not domains:
            return ""
        key = chance.choice(domains)
        self._release(key, chance)
        return f"release ComputeDomain {key.name} at once"

    def _release(self, key: Key, chance: random.Random) -> None:
        if self._cluster.storage.get(DOMAINS, key) is None:
            return
        self._cluster.objects.patch(DOMAINS, key, {"metadata": {"annotations": {"imex-dra.io/release": "now"}}})
        if self._cluster.storage.get(DOMAINS, key) is not None:
            self._cluster.objects.delete(DOMAINS, key, {})
        for pod in self._pods_of(key.name):
            self._undos.later(600.0, chance, partial(self._delete_if_there, pod))

    def _domains(self) -> list[Key]:
        return [key for key, _ in self._cluster.storage.all(DOMAINS)]

    def _pods(self) -> list[Key]:
        return [key for key, _ in self._cluster.storage.all(PODS)]

    def _pods_of(self, domain: str) -> list[Key]:
        return [key for key, one in self._cluster.storage.all(PODS) if domain_of(one) == domain]

    def _delete_if_there(self, pod: Key) -> None:
        if self._cluster.storage.get(PODS, pod) is not None:
            self._cluster.objects.delete(PODS, pod, {})


def domain_of(pod: Stored) -> str:
    """The name of its ComputeDomain, which is that of the template, too."""
    name: str = pod.document["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    return name
