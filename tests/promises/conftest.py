"""What is promised is tried with the same tools as the end-to-end tests have."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]


@pytest.fixture(params=["sandbox", pytest.param("real", marks=pytest.mark.real)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Either kind of cluster, of this test alone."""
    import clusters  # by the path above

    folder = tmp_path / "cluster"
    folder.mkdir()
    with (clusters.sandbox if request.param == "sandbox" else clusters.real)(folder) as found:
        yield found
