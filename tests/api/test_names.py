from imex_dra.api.meta import Key
from imex_dra.api.names import channel_path, name_format, partition_id
from imex_dra.api.nvlinknode import NVLINK_NODES
from imex_dra.api.views import PODS, RESOURCE_CLAIMS

RACK = "7B968A6D-c8aa-45e1-9e07-e1e51be99c31"


def test_a_partition_id_is_the_cluster_uuid_and_the_clique_id() -> None:
    assert partition_id(RACK, 1) == "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1"


def test_imex_node_names_are_unique_to_the_partition_and_valid_host_names() -> None:
    first, second = (name_format(partition_id(RACK, clique)) for clique in (1, 2))
    assert first != second
    assert (first % 7).endswith("-007")
    assert len(first % 7) < 64


def test_paths_of_devices_and_resources() -> None:
    assert channel_path(7) == "/dev/nvidia-caps-imex-channels/channel7"
    assert PODS.path("ns", "p", "status") == "/api/v1/namespaces/ns/pods/p/status"
    assert PODS.path() == "/api/v1/pods"
    assert RESOURCE_CLAIMS.path("ns") == "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims"
    assert NVLINK_NODES.path("ignored", "n") == "/apis/imex-dra.io/v1alpha1/nvlinknodes/n"
    assert str(Key("ns", "n")) == "ns/n"
    assert str(Key("", "n")) == "n"
