"""A Ray cluster of two nodes on this machine, which all tests of a module share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one CPU each, to which this process is connected."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    from fullrank.engine.ray.cluster import LOCAL
    from fullrank.engine.ray.cluster import Cluster as Connection

    with pytest.MonkeyPatch.context() as patch:
        for name, value in LOCAL.items():
            patch.setenv(name, value)
        head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 10**8}
        found = Cluster(initialize_head=True, head_node_args=head)
        found.add_node(num_cpus=1, object_store_memory=10**8)
        with Connection(found.address):
            yield found
        found.shutdown()
