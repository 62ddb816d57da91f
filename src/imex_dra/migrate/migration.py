"""Files of manifests to files of manifests, and what was changed in them.

Three things are changed: workloads that ask for channels in the old way claim them; of several workloads with one
ComputeDomain each gets its own; pods that nothing keeps in one NVLink partition get affinity. What a comment
`# imex-lint: ignore` accepts stays. A workload is changed wholly or not at all.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from imex_dra.lint.documents import read_source
from imex_dra.lint.findings import Finding
from imex_dra.lint.isolationrules import legacy_channel, mounted_channels
from imex_dra.lint.manifests import Domain, Manifests, load
from imex_dra.lint.placementrules import may_spread
from imex_dra.lint.pods import Claim, Pods
from imex_dra.lint.report import plain
from imex_dra.lint.rules import lint
from imex_dra.lint.values import Value
from imex_dra.migrate.editor import Editor
from imex_dra.migrate.legacy import remove_requests
from imex_dra.migrate.workloads import (
    Names,
    Workload,
    add_affinity,
    add_claim,
    add_domain,
    claimants,
    fits_one_partition,
    is_placed,
    several,
    workloads_of,
)
from imex_dra.migrate.yamltext import NotEditable


class Change(NamedTuple):
    file: str
    line: int
    """In the file before the change."""
    object: str
    message: str


@dataclass
class Migration:
    before: Mapping[str, str]
    after: dict[str, str] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    by_hand: list[Change] = field(default_factory=list)
    """Workloads that could not be changed, and why."""
    findings: list[Finding] = field(default_factory=list)
    """Of lint, in the files after the change."""
    empty: frozenset[str] = frozenset()
    """Files without an object."""

    @property
    def changed(self) -> list[str]:
        return [name for name, text in self.after.items() if text != self.before[name]]

    def plain(self) -> dict[str, Any]:
        """For JSON and YAML. Of `files` those that are changed, with their text."""
        return {
            "changes": [change._asdict() for change in self.changes],
            "byHand": [change._asdict() for change in self.by_hand],
            "findings": plain(self.findings)["findings"],
            "files": {name: self.after[name] for name in self.changed},
        }

    def diff(self) -> Iterator[str]:
        for name in self.changed:
            before, after = self.before[name].splitlines(keepends=True), self.after[name].splitlines(keepends=True)
            for line in difflib.unified_diff(before, after, name, name):
                yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def migrate(texts: Mapping[str, str], namespace: str = "") -> Migration:
    """`namespace` is that of objects that name none. Raises Unreadable."""
    run = _Run(texts, namespace)
    run.claim_instead_of_asking()
    run.give_each_workload_a_domain()
    run.keep_in_one_partition()
    migration = run.migration
    migration.after = {name: editor.edited() for name, editor in run.editors.items()}
    sources = [read_source(name, text) for name, text in migration.after.items()]
    migration.findings = lint(load(sources, namespace))
    return migration


_INSTEAD = " instead of asking for it in the old way"


class _Run:
    def __init__(self, texts: Mapping[str, str], namespace: str) -> None:
        self.editors = {name: Editor(name, text) for name, text in texts.items()}
        self.manifests: Manifests = load([editor.source for editor in self.editors.values()], namespace)
        found = {obj.file for obj in self.manifests.objects}
        self.migration = Migration(dict(texts), empty=frozenset(texts) - found)
        self._names = Names.of(self.manifests)
        self._templates: dict[int, str] = {}
        """Of claims that name another template now."""
        self._placed: set[int] = set()
        """Objects whose affinity was decided with their claims."""

    def claim_instead_of_asking(self) -> None:
        asking, accepted = set(), set()
        for rule in (legacy_channel, mounted_channels):
            for problem in rule.check(self.manifests):
                asking.add(id(problem.object))
                if self._accepted(rule.id, problem.object.file, problem.at):
                    accepted.add(id(problem.object))
        users = [pods for pods in self.manifests.pods if id(pods.object) in asking - accepted]
        for workload in workloads_of(users):
            self._change(workload, partial(self._claim, workload))

    def _claim(self, workload: Workload, editor: Editor) -> str:
        if workload.object.kind == "DaemonSet":
            raise NotEditable("a DaemonSet runs on every node, and may be the one that provides the channels")
        start = editor.yaml.checkpoint()
        removed = [remove_requests(editor, pods) for pods in workload.templates]
        complete = all(removed)
        new = claimants(workload, self.manifests)
        if not new and editor.yaml.checkpoint() == start:
            return ""  # lint finds what is left to do
        if not new:
            return "no longer asks for a channel in the old way" if complete else "asks less in the old way"
        existing = [claim for pods in workload.templates for claim in self.manifests.channel_claims(pods)]
        template = next((claim.template.text for claim in existing if claim.template.text), "")
        name = workload.name
        if not template:
            name, template = self._names.new(workload)
            add_domain(editor, workload, name, template)
        for pods in new:
            add_claim(editor, pods, template)
        if several(new):
            for pods in new:
                self._place(editor, pods, name)
        self._placed |= {id(pods.object) for pods in workload.templates}
        return f"claims a channel from template {template}" + (_INSTEAD if complete else "")

    def give_each_workload_a_domain(self) -> None:
        for domain in self.manifests.domains:
            users: dict[int, list[tuple[Pods, Claim]]] = {}
            for pods, claim in self.manifests.users(domain):
                # As lint: Pods without a controller are taken for one workload.
                users.setdefault(0 if pods.object.kind == "Pod" else id(pods.object), []).append((pods, claim))
            for shared in list(users.values())[1:]:
                if any(self._accepted("IMEX122", pods.object.file, claim.template) for pods, claim in shared):
                    continue
                for workload in workloads_of(pods for pods, _ in shared):
                    self._change(workload, partial(self._split, workload, domain, [claim for _, claim in shared]))

    def _split(self, workload: Workload, domain: Domain, claims: list[Claim], editor: Editor) -> str:
        name, template = self._names.new(workload)
        mode = domain.object.value.at("spec.channel.allocationMode").text
        add_domain(editor, workload, name, template, mode)
        own = {id(claim) for pods in workload.templates for claim in pods.claims}
        for claim in claims:
            if id(claim) in own:
                editor.yaml.replace(editor.node(claim.template), template)
                self._templates[id(claim)] = template
        return f"has ComputeDomain {name} of its own, instead of {domain.object.name}"

    def keep_in_one_partition(self) -> None:
        for pods in self.manifests.claiming:
            accepted = self._accepted("IMEX140", pods.object.file, pods.spec)
            if id(pods.object) in self._placed or accepted or not may_spread(self.manifests, pods):
                continue
            if not fits_one_partition(pods):
                continue  # IMEX140 says why, and what to do instead
            workload = Workload(pods.object, (pods,))
            self._change(workload, partial(self._affinity, pods, workload))

    def _affinity(self, pods: Pods, workload: Workload, editor: Editor) -> str:
        claim = self.manifests.channel_claims(pods)[0]
        template = self._templates.get(id(claim), claim.template.text)
        self._place(editor, pods, template if pods.object.kind == "Pod" else workload.name)
        return f"has affinity that keeps {pods} in one NVLink partition"

    def _place(self, editor: Editor, pods: Pods, workload: str) -> None:
        if not is_placed(pods) and fits_one_partition(pods):
            add_affinity(editor, pods, workload)

    def _change(self, workload: Workload, change: Callable[[Editor], str]) -> None:
        """All edits of a workload are in its file. If one is not possible, none is made."""
        editor = self.editors[workload.object.file]
        checkpoint = editor.yaml.checkpoint()
        about = (workload.object.file, workload.object.value.line, str(workload))
        try:
            if message := change(editor):
                self.migration.changes.append(Change(*about, message))
        except NotEditable as error:
            editor.yaml.undo(checkpoint)
            self.migration.by_hand.append(Change(*about, str(error)))

    def _accepted(self, id: str, file: str, at: Value) -> bool:
        """Whether a comment accepts the finding."""
        return id in self.manifests.ignored.get(file, {}).get(at.line, ())
