"""What belongs together across files and namespaces, and cases in which a rule must be silent."""

import textwrap

import pytest

from imex_dra.lint.documents import read_source
from imex_dra.lint.manifests import load, nearest
from imex_dra.lint.rules import find_rule, lint
from tests.lint.marked import found


def domain(name: str = "train", template: str = "train-channel", namespace: str = "") -> str:
    metadata = f"{{name: {name}, namespace: {namespace or 'null'}}}"
    return (
        "apiVersion: resource.nvidia.com/v1beta1\nkind: ComputeDomain\n"
        f"metadata: {metadata}\nspec: {{channel: {{resourceClaimTemplate: {{name: {template}}}}}}}\n"
    )


def pod(name: str = "worker", template: str = "train-channel", namespace: str = "", more: str = "") -> str:
    text = f"""\
        apiVersion: v1
        kind: Pod
        metadata: {{name: {name}, namespace: {namespace or "null"}}}
        spec:
          resourceClaims: [{{name: imex, resourceClaimTemplateName: {template}}}]
          containers:
          - {{name: main, image: x, resources: {{claims: [{{name: imex}}]}}}}
        """
    return textwrap.dedent(text) + more


def ids(*files: str) -> list[tuple[str, str]]:
    sources = [read_source(f"f{number}", text) for number, text in enumerate(files)]
    return [(finding.file, finding.id) for finding in lint(load(sources))]


def test_a_pod_finds_its_domain_in_another_file() -> None:
    assert ids(pod(), domain()) == []
    assert ids(pod()) == [("f0", "IMEX102")]


def test_a_domain_and_its_pods_in_one_file_have_no_note() -> None:
    """They may log one harmless FailedResourceClaimCreation, but a note in every good manifest would be noise."""
    assert ids(domain() + "---\n" + pod()) == []
    rule = find_rule("IMEX101")
    assert rule is not None
    assert "FailedResourceClaimCreation" in rule.why
    assert "No rule notes that." in rule.why
    assert "in a running cluster, to every template that does not exist" in rule.why


def test_files_with_the_same_objects_do_not_disturb_each_other() -> None:
    both = domain() + "---\n" + pod()
    assert ids(both, both, both) == []


def test_pods_of_one_template_are_one_workload_without_a_controller() -> None:
    assert ids(domain(), pod("a"), pod("b")) == [("f1", "IMEX140"), ("f2", "IMEX140")]


JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: NUMBER
  template:
    spec:
      nodeSelector: SELECTOR
      resourceClaims: [{name: imex, resourceClaimTemplateName: train-channel}]
      containers:
      - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 4}, claims: [{name: imex}]}}
"""


def advised(number: int, selector: str = "null") -> list[tuple[str, str]]:
    job = JOB.replace("NUMBER", str(number)).replace("SELECTOR", selector)
    findings = lint(load([read_source("f", domain() + "---\n" + job)]))
    return [(finding.id, finding.next_step) for finding in findings]


def test_a_job_that_is_larger_than_a_partition_is_not_advised_to_require_one() -> None:
    ((id, step),) = advised(18)
    assert (id, step) == ("IMEX140", "add required pod affinity with topologyKey nvidia.com/gpu.clique")
    ((id, step),) = advised(19)
    assert id == "IMEX140"
    assert "affinity" not in step
    assert step.startswith("use one workload per partition; or, ")


def test_a_job_that_a_node_selector_keeps_in_one_partition_must_fit_there() -> None:
    selector = "{nvidia.com/gpu.clique: a.1}"
    assert advised(18, selector) == []
    ((id, step),) = advised(19, selector)
    assert (id, step) == ("IMEX143", "use fewer pods, or one workload per partition")


def test_a_daemon_set_is_advised_to_select_nodes() -> None:
    daemon_set = JOB.replace("batch/v1", "apps/v1").replace("kind: Job", "kind: DaemonSet")
    text = daemon_set.replace("SELECTOR", "null").replace("  parallelism: NUMBER\n", "")
    findings = lint(load([read_source("f", domain() + "---\n" + text)]))
    steps = [finding.next_step for finding in findings if finding.id == "IMEX140"]
    assert steps == ["select the nodes of one partition by the label nvidia.com/gpu.clique"]


def test_domains_of_the_same_template_name_in_two_namespaces_are_no_conflict() -> None:
    a, b = (domain(namespace=name) + "---\n" + pod(namespace=name) for name in ("a", "b"))
    assert ids(a, b) == []


def test_a_claim_of_another_driver_is_none_of_a_channel() -> None:
    template = """\
        apiVersion: resource.k8s.io/v1
        kind: ResourceClaimTemplate
        metadata: {name: dma-channel}
        spec: {spec: {devices: {requests: [{name: dma, exactly: {deviceClassName: dma.example.com}}]}}}
        """
    more = "  securityContext: {}\n"
    assert ids(textwrap.dedent(template), pod(template="dma-channel", more=more), pod("b", "dma-channel")) == []


def test_a_similar_template_of_another_namespace_is_not_suggested() -> None:
    assert ids(domain(namespace="a"), pod(template="train-chanel", namespace="b")) == [("f1", "IMEX102")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gpu", []), ("train-chanel", ["IMEX101"]), ("imex-for-team", ["IMEX101"]), ("single-gpu", [])],
)
def test_unknown_templates_are_errors_only_if_a_channel_was_probably_meant(name: str, expected: list[str]) -> None:
    text = domain() + "---\n" + pod(template=name).replace("name: imex", "name: c")
    assert [id for _, id in ids(text)] == expected


def test_lists_may_contain_lists() -> None:
    inner = "{kind: List, items: [{kind: ComputeDomain, apiVersion: resource.nvidia.com/v1beta1}]}"
    assert found(f"kind: List\nitems:\n- {inner}\n") == [(3, "IMEX120"), (3, "IMEX120")]


MPIJOB = """\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: x}
spec:
  runLauncherAsWorker: %s
  mpiReplicaSpecs:
    Launcher:
      template:
        spec:
          resourceClaims: [{name: imex, resourceClaimTemplateName: train-channel}]
          containers: [{name: m, image: x, resources: {limits: {nvidia.com/gpu: %s}, claims: [{name: imex}]}}]
"""


@pytest.mark.parametrize(("works", "gpus", "noted"), [("false", 0, True), ("true", 0, False), ("false", 4, False)])
def test_a_launcher_that_works_may_claim(works: str, gpus: int, noted: bool) -> None:
    assert [id for _, id in ids(domain(), MPIJOB % (works, gpus))] == (["IMEX154"] if noted else [])


def test_affinity_to_another_workload_in_the_files_is_no_finding() -> None:
    affinity = (
        "  affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution:"
        " [{topologyKey: nvidia.com/gpu.clique, labelSelector: {matchLabels: {app: cache}}}]}}\n"
    )
    cache = "kind: Pod\nmetadata: {name: cache, labels: {app: cache}}\nspec: {containers: [{name: x}]}\n"
    assert ids(domain(), pod(more=affinity)) == [("f1", "IMEX142")]
    assert ids(domain(), pod(more=affinity), cache) == []


def test_names_are_near_if_a_letter_differs() -> None:
    assert nearest("train-chanel", ["eval-channel", "train-channel"]) == "train-channel"
    assert nearest("x", ["train-channel"]) == ""


def test_a_slightly_similar_template_is_suggested_only_for_a_channel() -> None:
    claim = pod(template="trainer-nic").replace("name: imex", "name: c")
    assert ids(domain(template="training-net"), claim) == []
    assert ids(domain(template="training-net"), claim.replace("name: c", "name: imex")) == [("f1", "IMEX101")]


def test_init_containers_need_no_channel() -> None:
    more = "  initContainers: [{name: warm-up, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]\n"
    assert ids(domain(), pod(more=more)) == []


def test_a_claim_in_a_wrong_place_is_one_finding() -> None:
    text = pod().replace("resources: {claims: [{name: imex}]}", "resources: {limits: {claims: [{name: imex}]}}")
    assert ids(domain(), text) == [("f1", "IMEX110")]


WORKLOAD = """\
kind: %s
metadata: {name: x, annotations: {%s}}
spec:
  parallelism: 20
  replicas: 2
  template: &template
    metadata: {labels: {app: x}}
    spec:
      affinity: %s
      resourceClaims: [{name: imex, %s}]
      containers: [{name: m, image: x, resources: {limits: {nvidia.com/gpu: %s}, claims: [{name: imex}]}}]
  leaderWorkerTemplate: {size: 4, workerTemplate: *template}
"""
TEMPLATE = "resourceClaimTemplateName: train-channel"


def test_pods_that_exclude_each_other_cannot_share_a_claim() -> None:
    term = "requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: %s, labelSelector: {}}]"
    together = f"podAffinity: {{{term % 'nvidia.com/gpu.clique'}}}"
    apart = f"podAntiAffinity: {{{term % 'kubernetes.io/hostname'}}}"
    shared = "resourceClaimName: imex"
    assert ids(WORKLOAD % ("Deployment", "", f"{{{together}}}", shared, 0)) == []
    assert ids(WORKLOAD % ("Deployment", "", f"{{{together}, {apart}}}", shared, 0)) == [("f0", "IMEX109")]


@pytest.mark.parametrize(("number", "expected"), [(7, ["IMEX124"]), (8, []), (9, ["IMEX124"])])
def test_all_groups_of_a_leader_worker_set_count_for_num_nodes(number: int, expected: list[str]) -> None:
    exclusive = "leaderworkerset.sigs.k8s.io/exclusive-topology: nvidia.com/gpu.clique"
    workload = WORKLOAD % ("LeaderWorkerSet", exclusive, "{}", TEMPLATE, 4)
    sized = domain().replace("spec: {", f"spec: {{numNodes: {number}, ")
    assert [id for _, id in ids(sized, workload)] == expected


def test_slices_of_a_large_job_may_be_in_several_partitions() -> None:
    slices = "kueue.x-k8s.io/podset-slice-required-topology: nvidia.com/gpu.clique"
    assert ids(domain(), WORKLOAD % ("Job", slices, "{}", TEMPLATE, 4)) == []


def test_a_config_counts_only_for_its_requests() -> None:
    text = """\
        apiVersion: resource.k8s.io/v1
        kind: ResourceClaimTemplate
        metadata: {name: t}
        spec:
          spec:
            devices:
              requests: [{name: a, exactly: {deviceClassName: compute-domain-default-channel.nvidia.com}}]
              config:
              - requests: [%s]
                opaque:
                  driver: compute-domain.nvidia.com
                  parameters: {domainID: 5d2c1e52-7a8f-4a0e-9d7e-0d6a3a1f2b11}
        """
    assert found(textwrap.dedent(text) % "a") == []
    assert found(textwrap.dedent(text) % "b") == [(7, "IMEX130")]


def test_control_characters_of_names_are_not_printed() -> None:
    text = pod(name='"a\\e[31m\\nb"')
    (finding,) = lint(load([read_source("f", text)]))
    assert finding.object == "Pod a?[31m?b"


@pytest.mark.parametrize(
    ("claim", "message", "step"),
    [
        (
            "{name: imex, resourceClaimTemplate: train-channel}",
            "claim imex has resourceClaimTemplate, which is no field",
            "use resourceClaimTemplateName",
        ),
        (
            "{name: imex, resourceclaimname: x}",
            "claim imex has resourceclaimname, which is no field",
            "use resourceClaimName",
        ),
        (
            "{name: imex, source: {resourceClaimTemplateName: train-channel}}",
            "claim imex has source, which Kubernetes 1.31 removed",
            "move resourceClaimTemplateName out of source, beside name",
        ),
        (
            "{name: imex}",
            "claim imex names neither a template nor a ResourceClaim",
            "add resourceClaimTemplateName with the template of the ComputeDomain",
        ),
        (
            "{name: imex, resourceClaimTemplateName: null, note: x}",
            "claim imex names neither a template nor a ResourceClaim",
            "add resourceClaimTemplateName with the template of the ComputeDomain",
        ),
        (
            "imex",
            "an entry without a name names neither a template nor a ResourceClaim",
            "add resourceClaimTemplateName with the template of the ComputeDomain",
        ),
    ],
)
def test_a_claim_without_a_template_names_the_field_that_was_meant(claim: str, message: str, step: str) -> None:
    text = pod().replace("{name: imex, resourceClaimTemplateName: train-channel}", claim, 1)
    assert claim in text
    found = [
        one for one in lint(load([read_source("f", domain()), read_source("g", text)])) if one.id == "IMEX111"
    ]
    assert [(one.message, one.next_step) for one in found] == [(message, step)]


def test_a_claim_of_a_pod_group_needs_no_template() -> None:
    claim = "{name: imex, podGroupResourceClaim: shared}"
    text = pod().replace("{name: imex, resourceClaimTemplateName: train-channel}", claim, 1)
    assert claim in text
    assert ids(domain(), text) == []
