"""What users do: ComputeDomains and pods come and go."""

import random
from functools import partial

from imex_sandbox.embedded.kinds import PODS
from imex_sandbox.embedded.statuses import ApiError
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

    def create_pod(self, chance: random.Random) -> str:
        domains = [
            key.name
            for key in self._domains()
            if not self._cluster.objects.get(DOMAINS, key).document["metadata"].get("deletionTimestamp")
        ]
        if not domains or len(self._pods()) >= _MAX_PODS:
            return ""
        domain, pods = chance.choice(domains), chance.choice((1, 1, 2, 4))
        names = []
        for _ in range(pods):
            self._created += 1
            names.append(f"{domain}-{self._created}")
            claims = [{"name": "imex", "resourceClaimTemplateName": domain}]
            spec = {"resourceClaims": claims}
            self._cluster.objects.create(PODS, USERS, {"metadata": {"name": names[-1]}, "spec": spec})
        return f"create pods {', '.join(names)}"

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
        self._cluster.objects.delete(DOMAINS, key, {})
        for pod in self._pods_of(key.name):
            self._cluster.objects.delete(PODS, pod, {})
        return f"delete ComputeDomain {key.name} and its pods"

    def release_domain(self, chance: random.Random) -> str:
        """While its pods run."""
        domains = self._domains()
        if not domains:
            return ""
        key = chance.choice(domains)
        self._cluster.objects.patch(DOMAINS, key, {"metadata": {"annotations": {"imex-dra.io/release": "now"}}})
        try:
            self._cluster.objects.delete(DOMAINS, key, {})
        except ApiError as error:
            return f"release {key.name}: {error}"
        for pod in self._pods_of(key.name):
            self._undos.later(600.0, chance, partial(self._delete_if_there, pod))
        return f"release ComputeDomain {key.name} at once"

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
