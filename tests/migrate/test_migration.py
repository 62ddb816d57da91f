"""What `migrate` changes, and what it leaves to a person."""

import pytest
import yaml

from imex_dra.migrate.migration import Migration, migrate

LEGACY = """\
# The training of team A.
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: team-a}
spec:
  parallelism: 4   # one rack
  template:
    spec:
      # Größe: 4 GPUs
      containers:
      - name: main
        image: registry.example/train
        env:
        - name: NVIDIA_IMEX_CHANNELS
          value: "0"
        resources:
          limits: {nvidia.com/gpu: 4}
"""

MIGRATED = """\
apiVersion: resource.nvidia.com/v1beta1
kind: ComputeDomain
metadata:
  name: train
  namespace: team-a
spec:
  channel:
    resourceClaimTemplate:
      name: train-channel
---
# The training of team A.
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: team-a}
spec:
  parallelism: 4   # one rack
  template:
    metadata:
      labels:
        imex-dra.io/workload: train
    spec:
      resourceClaims:
      - name: imex
        resourceClaimTemplateName: train-channel
      affinity:
        podAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - topologyKey: nvidia.com/gpu.clique
            labelSelector:
              matchLabels:
                imex-dra.io/workload: train
      # Größe: 4 GPUs
      containers:
      - name: main
        image: registry.example/train
        resources:
          limits: {nvidia.com/gpu: 4}
          claims:
          - name: imex
"""


def migrated(text: str) -> Migration:
    return migrate({"job.yaml": text})


def test_a_legacy_job_claims_from_a_compute_domain_of_its_own() -> None:
    done = migrated(LEGACY)
    assert done.after == {"job.yaml": MIGRATED}
    assert done.findings == []
    (change,) = done.changes
    assert change.message == "claims a channel from template train-channel instead of asking for it in the old way"
    assert (change.line, change.object) == (2, "Job team-a/train")


def test_an_accepted_finding_stays() -> None:
    text = LEGACY.replace("NVIDIA_IMEX_CHANNELS", "NVIDIA_IMEX_CHANNELS   # imex-lint: ignore IMEX150")
    assert migrated(text).changed == []


def test_manifests_without_channels_stay() -> None:
    assert migrated(LEGACY.replace("NVIDIA_IMEX_CHANNELS", "NCCL_DEBUG")).changed == []


def test_a_flag_in_a_command_line_is_removed_and_other_forms_are_left() -> None:
    command = "        command: [bash, -c, 'mpirun -x NVIDIA_IMEX_CHANNELS=0 -np 4 train']\n"
    done = migrated(LEGACY + command)
    assert "command: [bash, -c, 'mpirun -np 4 train']" in done.after["job.yaml"]
    done = migrated(LEGACY + command.replace("mpirun -x", "env"))
    assert "env NVIDIA_IMEX_CHANNELS=0" in done.after["job.yaml"]
    assert [finding.id for finding in done.findings] == ["IMEX150"]


def test_a_workload_that_is_too_large_for_a_partition_gets_no_affinity() -> None:
    done = migrated(LEGACY.replace("parallelism: 4 ", "parallelism: 19"))
    assert "affinity" not in done.after["job.yaml"]
    (finding,) = done.findings
    assert finding.id == "IMEX140"
    assert "its pods need 19 nodes, and the NVLink partition of an NVL72 rack has 18 nodes" in finding.message
    assert finding.next_step.startswith("use one workload per partition")


def test_the_groups_of_a_leader_worker_set_may_be_in_different_partitions() -> None:
    text = (
        "apiVersion: leaderworkerset.x-k8s.io/v1\n"
        "kind: LeaderWorkerSet\n"
        "metadata: {name: serve}\n"
        "spec:\n"
        "  replicas: 2\n"
        "  leaderWorkerTemplate:\n"
        "    size: 4\n"
        "    workerTemplate:\n"
        "      spec:\n"
        "        containers:\n"
        "        - {name: vllm, image: serve, env: [{name: NVIDIA_IMEX_CHANNELS, value: '0'}]}\n"
    )
    *_, group = yaml.safe_load_all(migrated(text).after["job.yaml"])
    affinity = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["affinity"]["podAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["matchLabelKeys"] == ["leaderworkerset.sigs.k8s.io/group-index"]


def test_a_daemon_set_is_left_to_a_person() -> None:
    text = LEGACY.replace("kind: Job", "kind: DaemonSet").replace("batch/v1", "apps/v1")
    done = migrated(text)
    assert done.changed == []
    assert [change.object for change in done.by_hand] == ["DaemonSet team-a/train"]


def test_aliases_and_json_are_left_to_a_person() -> None:
    aliases = LEGACY.replace(
        "metadata: {name: train", "metadata: {labels: &l {a: b}, annotations: *l, name: train"
    )
    assert "aliases" in migrated(aliases).by_hand[0].message
    assert migrated(aliases).changed == []
    as_json = yaml.safe_dump(yaml.safe_load(LEGACY), default_flow_style=True, width=10_000)
    done = migrated(as_json)
    assert "it is JSON" in done.by_hand[0].message
    assert done.after["job.yaml"] == as_json


def test_a_name_that_is_taken_gets_a_number() -> None:
    domain = MIGRATED.partition("---\n")[0].replace("train-channel", "other")
    assert "resourceClaimTemplateName: train-2-channel" in migrated(f"{domain}---\n{LEGACY}").after["job.yaml"]


@pytest.mark.parametrize(
    ("style", "content"), [("|", "line\n"), ("|+", "line\n\n"), (">-", "line"), ("|-", "line")]
)
def test_text_at_the_end_of_a_container_stays(style: str, content: str) -> None:
    head = LEGACY.partition("        resources:")[0]
    done = migrated(f"{head}        args:\n        - {style}\n          line\n\n")
    *_, job = yaml.safe_load_all(done.after["job.yaml"])
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["args"] == [content]
    assert container["resources"] == {"claims": [{"name": "imex"}]}


AFFINITY = """\
      affinity:
        nodeAffinity: {}
"""


def test_affinity_above_the_containers_gets_its_own_entries() -> None:
    """The claims are inserted at the same place in the text, and belong to another mapping."""
    done = migrated(LEGACY.replace("      # Größe", f"{AFFINITY}      # Größe"))
    *_, job = yaml.safe_load_all(done.after["job.yaml"])
    spec = job["spec"]["template"]["spec"]
    assert spec["resourceClaims"] == [{"name": "imex", "resourceClaimTemplateName": "train-channel"}]
    assert set(spec["affinity"]) == {"nodeAffinity", "podAffinity"}
    assert done.findings == []


def test_entries_at_the_end_of_a_document_stay_above_a_new_document() -> None:
    first = (
        MIGRATED.partition("      affinity:")[0] + "      # Größe" + MIGRATED.partition("# Größe")[2] + AFFINITY
    )
    done = migrated(f"{first}---\n{LEGACY.replace('name: train,', 'name: second,')}")
    _, job, domain, second = yaml.safe_load_all(done.after["job.yaml"])
    assert set(job["spec"]["template"]["spec"]["affinity"]) == {"nodeAffinity", "podAffinity"}
    assert [domain["metadata"]["name"], second["metadata"]["name"]] == ["second", "second"]
    assert done.findings == []


def test_a_new_element_of_a_list_stays_in_the_list() -> None:
    """Its dash is as deep as the key of the next entry."""
    claims = "      resourceClaims:\n      - name: gpu\n        resourceClaimTemplateName: gpu\n"
    done = migrated(LEGACY.replace("      # Größe", f"{claims}      # Größe"))
    *_, job = yaml.safe_load_all(done.after["job.yaml"])
    assert [claim["name"] for claim in job["spec"]["template"]["spec"]["resourceClaims"]] == ["gpu", "imex"]
    assert "podAffinity" in job["spec"]["template"]["spec"]["affinity"]


SCRIPT = """\
        command:
        - bash
        - -c
        - |
          # first
          mpirun -np 4 \\
            -x NVIDIA_IMEX_CHANNELS=0 \\
            -x NCCL_DEBUG=INFO train
          mpirun -np 4 \\
            -x NVIDIA_IMEX_CHANNELS=0 train
          mpirun \\
            -np 4 \\
            -x NVIDIA_IMEX_CHANNELS=0
          echo   done
"""
WITHOUT_FLAGS = """\
        command:
        - bash
        - -c
        - |
          # first
          mpirun -np 4 \\
            -x NCCL_DEBUG=INFO train
          mpirun -np 4 \\
            train
          mpirun \\
            -np 4
          echo   done
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_flag_in_a_continued_line_is_removed(newline: str) -> None:
    done = migrated((LEGACY + SCRIPT).replace("\n", newline))
    assert WITHOUT_FLAGS.replace("\n", newline) in done.after["job.yaml"]
    assert done.findings == []


def test_a_flag_in_a_quoted_script_of_several_lines_is_removed() -> None:
    text = """        args: ["mpirun \\
                -x NVIDIA_IMEX_CHANNELS=0 \\
                -bind-to none \\
                -x NVIDIA_IMEX_CHANNELS=0"]
"""
    done = migrated(LEGACY + text)
    *_, job = yaml.safe_load_all(done.after["job.yaml"])
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["mpirun -bind-to none"]
    assert done.findings == []


def test_a_flag_in_a_folded_script_is_removed() -> None:
    text = """        args:
        - >-
          mpirun
          -np 4
          -x NVIDIA_IMEX_CHANNELS=0
          train

          echo done
"""
    done = migrated(LEGACY + text)
    *_, job = yaml.safe_load_all(done.after["job.yaml"])
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["mpirun -np 4 train\necho done"]


@pytest.mark.parametrize(
    "script",
    [
        # A command of its own; a line that is not continued, because of the comment; another way.
        "          mpirun\n          -x NVIDIA_IMEX_CHANNELS=0 train\n",
        "          mpirun \\ # all\n            -x NVIDIA_IMEX_CHANNELS=0 train\n",
        "          export NVIDIA_IMEX_CHANNELS=0\n",
    ],
)
def test_what_cannot_be_removed_from_a_script_is_left_to_do_once(script: str) -> None:
    done = migrated(f"{LEGACY}        command:\n        - bash\n        - -c\n        - |\n{script}")
    assert script in done.after["job.yaml"]
    (change,) = done.changes
    assert change.message == "claims a channel from template train-channel"
    assert [finding.id for finding in done.findings] == ["IMEX150"]
    again = migrate(done.after)
    assert (again.changes, again.by_hand, again.changed) == ([], [], [])
    assert [finding.id for finding in again.findings] == ["IMEX150"]
