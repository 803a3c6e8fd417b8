"""What a process that starts loads, and what it leaves to those who need it. Each module here costs CPU."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from declctl.sandbox import SandboxThread

MANIFEST = {
    "apiVersion": "declctl.dev/v1alpha1",
    "kind": "Controller",
    "metadata": {"name": "plain"},
    "spec": {
        "resources": [
            {
                "name": "configs",
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "indexers": [{"name": "byOwner", "fieldPath": "metadata.name"}],
            }
        ]
    },
}
CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "namespace": "default"}}

# Of no use to an informer that is made by a factory.
RARE = {
    "declctl.sandbox",
    "declctl.testing",
}
# Loaded for a manifest with faults, for a plugin with a config or a range, for a table, by a first scrape.
UNASKED = {
    "jsonschema",
    "packaging.specifiers",
    "prometheus_client",
    "declctl.admin.metrics",
    "watchfiles",
}
HEAVY = {
    "aiohttp",
    "kubernetes",
    "jsonschema",
    "packaging",
    "pluggy",
    "prometheus_client",
    "structlog",
    "typer",
}

LIBRARY = """
from declctl import Client, Registration, SharedIndexInformer, SharedInformerFactory, field_index
"""
INFORMER = """
import asyncio, sys
from declctl import Client, SharedInformerFactory, field_index

async def main():
    client = await Client.connect(kubeconfig=sys.argv[1])
    async with SharedInformerFactory(client) as factory:
        informer = factory.informer("v1", "ConfigMap", indexers={"byOwner": field_index("metadata.name")})
        await factory.wait_for_cache_sync()
        assert [str(key) for key in informer.lister.keys()] == ["default/one"]
    await client.close()

asyncio.run(main())
"""
RUN = """
import sys
from declctl.cli.main import status_of

command = ["run", sys.argv[2], "--kubeconfig", sys.argv[1], "--once", "--admin", "127.0.0.1:0"]
assert status_of(command) == 0
"""


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The kubeconfig of a cluster with one ConfigMap, and a manifest that watches it."""
    folder = tmp_path_factory.mktemp("start")
    manifest, kubeconfig = folder / "manifest.yaml", folder / "kubeconfig"
    manifest.write_text(json.dumps(MANIFEST))
    with SandboxThread() as server:
        server.load([CONFIG])
        kubeconfig.write_text(json.dumps(server.kubeconfig()))
        yield kubeconfig, manifest


def loaded_by(program: str, *arguments: Path) -> set[str]:
    """The modules that a program of its own has loaded when it ends."""
    telling = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", f"{program}\n{telling}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_library_loads_no_client_and_nothing_rare():
    """A program that imports what it needs for an informer pays for that, and connects later."""
    assert loaded_by(LIBRARY) & (HEAVY | RARE | {"declctl.objects.differences"}) == set()


def test_an_informer_loads_nothing_rare(files: tuple[Path, Path]):
    """A library user's process has what an informer needs, and nothing of a controller."""
    loaded = loaded_by(INFORMER, *files)
    assert loaded & (RARE | UNASKED | {"structlog", "typer", "pluggy"}) == set()
    assert {name for name in loaded if name.startswith(("declctl.manifest", "declctl.hooks"))} == set()


def test_a_plain_run_loads_what_it_uses(files: tuple[Path, Path]):
    """A manifest without faults, plugins and scrapers is run without what those would need."""
    assert loaded_by(RUN, *files) & (RARE | UNASKED) == set()
