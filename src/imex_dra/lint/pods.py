"""Objects in a manifest, and what a pod template says: its claims, its containers."""

import re
from dataclasses import dataclass
from functools import cached_property

from imex_dra.lint.values import Value
from imex_dra.lint.workloads import Template

GPU = "nvidia.com/gpu"
_CHANNEL_NAME = re.compile(r"imex|channel|compute-?domain", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Object:
    file: str
    value: Value
    default_namespace: str = ""

    @property
    def kind(self) -> str:
        return self.value["kind"].text

    @property
    def group(self) -> str:
        group, slash, _ = self.value["apiVersion"].text.partition("/")
        return group if slash else ""

    @property
    def metadata(self) -> Value:
        return self.value["metadata"]

    @property
    def name(self) -> str:
        prefix = self.metadata["generateName"].text
        return self.metadata["name"].scalar or (f"{prefix}*" if prefix else "")

    @property
    def namespace(self) -> str:
        """Empty if the file does not say it."""
        return self.metadata["namespace"].scalar or self.default_namespace

    def __str__(self) -> str:
        name = self.name or "(without a name)"
        return f"{self.kind} {self.namespace}/{name}" if self.namespace else f"{self.kind} {name}"


@dataclass(frozen=True, eq=False)
class Container:
    value: Value
    init: bool

    @property
    def name(self) -> str:
        return self.value["name"].scalar

    @property
    def listed(self) -> tuple[Value, ...]:
        """Names of claims."""
        return tuple(claim["name"] for claim in self.value.at("resources.claims").elements())

    @property
    def gpus(self) -> int:
        resources = self.value["resources"]
        amounts = (resources[part][GPU].scalar for part in ("limits", "requests"))
        return max((int(amount) for amount in amounts if amount.isdecimal() and len(amount) < 6), default=0)

    def variable(self, name: str) -> Value:
        """The entry of `env`; missing if there is none."""
        found = [entry for entry in self.value["env"].elements() if entry["name"].text == name]
        return found[-1] if found else self.value["env"]["no such variable"]

    @property
    def wants_multi_node_nvlink(self) -> bool:
        return self.variable("NCCL_MNNVL_ENABLE")["value"].scalar in ("1", "2")


@dataclass(frozen=True, eq=False)
class Claim:
    """An entry of `resourceClaims`."""

    value: Value

    @property
    def name(self) -> str:
        return self.value["name"].scalar

    @property
    def template(self) -> Value:
        return self.value["resourceClaimTemplateName"]

    @property
    def shared(self) -> Value:
        return self.value["resourceClaimName"]

    @property
    def looks_like_channel(self) -> bool:
        texts = (self.name, self.template.text, self.shared.text)
        return any(_CHANNEL_NAME.search(text) for text in texts)


@dataclass(frozen=True, eq=False)
class Pods:
    """A pod template of a workload, or a Pod."""

    object: Object
    template: Template

    @property
    def spec(self) -> Value:
        return self.template.value["spec"]

    @property
    def labels(self) -> dict[str, str]:
        return {key: value.scalar for key, value in self.template.value["metadata"]["labels"].items()}

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(map(Claim, self.spec["resourceClaims"].elements()))

    @cached_property
    def containers(self) -> tuple[Container, ...]:
        return tuple(
            Container(value, init)
            for part, init in (("initContainers", True), ("containers", False))
            for value in self.spec[part].elements()
        )

    @property
    def gpus(self) -> int:
        return sum(container.gpus for container in self.containers if not container.init)

    def __str__(self) -> str:
        if self.object.kind == "Pod":
            return "the pod"
        return f"its {self.template.role} pods" if self.template.role else "its pods"
