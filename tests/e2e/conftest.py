"""Every scenario runs against the sandbox and, where there is one, against a real API server."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the tests share the modules beside them

import clusters
import operators
import packages
from clusters import Cluster, SandboxCluster
from operators import Operator


@pytest.fixture(scope="session")
def _real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with clusters.real(tmp_path_factory.mktemp("controlplane")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _real_sharded_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with clusters.real(tmp_path_factory.mktemp("sharded"), clusters.SHARDED) as cluster:
        yield cluster


@pytest.fixture(scope="session", params=["real"])
def real_cluster(_real_cluster: Cluster) -> Cluster:
    """The real API server, one for all tests of a worker: it takes seconds to start.

    The parameter puts `real` into the name of the test, by which two workers get all of these tests.
    """
    return _real_cluster


@pytest.fixture(scope="session")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the third-party plugin is installed."""
    return packages.install(packages.CHANGELOG, tmp_path_factory.mktemp("site"))


@pytest.fixture
def sandbox_cluster(tmp_path: Path) -> Iterator[SandboxCluster]:
    """A sandbox, one for each test: it takes milliseconds to start."""
    folder = tmp_path / "sandbox"
    folder.mkdir()
    with clusters.sandbox(folder) as cluster:
        yield cluster


@pytest.fixture(params=["sandbox", pytest.param("real", marks=pytest.mark.real)])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Either."""
    return request.getfixturevalue("sandbox_cluster" if request.param == "sandbox" else "_real_cluster")


@pytest.fixture
def _sandbox_sharded_cluster(tmp_path: Path) -> Iterator[SandboxCluster]:
    with clusters.sandbox(tmp_path, shard_selectors=True) as cluster:
        yield cluster


@pytest.fixture(
    params=[
        pytest.param("sandbox_cluster", id="sandbox"),
        pytest.param("_sandbox_sharded_cluster", id="sandbox-sharded"),
        pytest.param("_real_cluster", id="real", marks=pytest.mark.real),
        pytest.param("_real_sharded_cluster", id="real-sharded", marks=pytest.mark.real),
    ]
)
def gated_cluster(request: pytest.FixtureRequest) -> Cluster:
    """Either, without and with the feature gate of shard selectors; the latter has no controllers."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def namespace(cluster: Cluster) -> str:
    """A namespace of the test's own."""
    return clusters.new_namespace(cluster)


@pytest.fixture
def operator(cluster: Cluster) -> Iterator[Operator]:
    """The kinds of examples/09."""
    with operators.installed(cluster) as found:
        yield found
