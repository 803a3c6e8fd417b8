"""A controller as people run it, twice: a process that logs text and one that logs JSON, over the same files.

The API server is in the test's process, so that it can be told to fail. What the two say of themselves is
read where people read it: the command line, HTTP and the log.
"""

import json
import re
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import yaml
from prometheus_client.parser import text_string_to_metric_families

from declctl.sandbox import SandboxThread
from declctl.testing import BundleDir, until

sys.path.insert(0, str(Path(__file__).parents[2] / "e2e"))  # what drives a process is shared with those tests

from processes import Declctl

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: guard}
spec:
  resources:
    - {name: maps, apiVersion: v1, kind: ConfigMap}
  handlers:
    - {name: tell, resourceRef: {name: maps}, entryPoint: handlers}
  plugins:
    - {name: tester, config: {level: 1}}
  reload: {settle: 20ms, preflightTimeout: 60s, warmTimeout: 60s}
"""
HANDLERS = """\
import declctl

@declctl.hookimpl
def declctl_export_state():
    return {"seen": 7}

@declctl.hookimpl
def declctl_event(change):
    print("good heard", change.key, flush=True)
"""
PLUGIN = """\
import declctl

@declctl.hookimpl
def declctl_config_schema():
    return {"type": "object", "properties": {"level": {"type": "integer"}}}

@declctl.hookimpl
def declctl_event(change): ...
"""
_FEW = 60  # objects that are there from the beginning
_HASH = re.compile(r"\b[0-9a-f]{12}\b")
_OBJECT = re.compile(r"\bdefault/(?:old|new)-\d+")
_AGO = re.compile(r"\b\d+[smhd]( ago|  )")


class Site:
    """A folder of installed packages with one plugin, `tester`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._info = path / "dc_tester-1.0.dist-info"
        self._info.mkdir(parents=True)
        (self._info / "entry_points.txt").write_text("[declctl]\ntester = dc_tester\n")
        (path / "dc_tester.py").write_text(PLUGIN)
        self.install("1.0")

    def install(self, version: str) -> None:
        """What pip leaves on disk of that version."""
        self._info = self._info.rename(self.path / f"dc_tester-{version}.dist-info")
        metadata = f"Metadata-Version: 2.1\nName: dc-tester\nVersion: {version}\n"
        (self._info / "METADATA").write_text(metadata)


class Process(Declctl):
    """A `declctl run`, and what monitoring sees of it."""

    @property
    def address(self) -> str:
        """What `--admin` has to be."""
        return self.admin().removeprefix("http://")

    def is_ready(self) -> bool:
        """What a kubelet sees."""
        try:
            with urllib.request.urlopen(f"{self.admin()}/readyz", timeout=10) as answer:
                return answer.status == 200
        except HTTPError:
            return False

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Every sample by its name and the values of its labels."""
        with urllib.request.urlopen(f"{self.admin()}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}

    def runs(self, bundle: str) -> bool:
        """Whether what the files say is what runs, and is this bundle."""
        status = self.status()
        reloaded = next(each for each in status["conditions"] if each["type"] == "Reloaded")
        return (status["bundleHash"], reloaded["status"]) == (bundle, "True")

    def attempts_since(self, before: dict[tuple[str, ...], float]) -> dict[str, float]:
        """How many attempts to reload were counted since, by result; results without any are left out."""
        now = self.metrics()
        more = {name[1]: now[name] - before[name] for name in now if name[0] == "declctl_reloads_total"}
        return {result: count for result, count in more.items() if count}

    def logged_text(self, words: str, *, after: int) -> list[str]:
        """The line of a text log that has these words, and what stands below it; `after` are skipped."""

        def found() -> list[str]:
            lines = self.err[after:]
            first = next((number for number, line in enumerate(lines) if words in line), len(lines))
            return lines[first:]

        first, *others = until(f"the log says {words!r}", found, timeout=30)
        return [first, *takewhile(lambda line: line.startswith(" "), others)]

    def logged_json(self, fits: Callable[[dict[str, Any]], bool], *, after: int) -> dict[str, Any]:
        """The entry of a JSON log that fits; every line of it is an object."""

        def found() -> dict[str, Any] | None:
            return next((entry for entry in map(json.loads, self.err[after:]) if fits(entry)), None)

        return until("the log has such an entry", found, timeout=30) or {}


class Scene:
    """Everything that a failure is made of. `text` and `json` are the processes, by what they log.

    `good` is the bundle hash of the files that are good.
    """

    text: Process
    json: Process
    good: str

    def __init__(self, folder: Path, sandbox: SandboxThread) -> None:
        self.sandbox = sandbox
        self.site = Site(folder / "site")
        self.bundle = BundleDir(folder / "bundle")
        self._numbers = iter(range(10**6))
        self.mend()

    def mend(self) -> None:
        """Write the files that are good."""
        self.bundle.write("manifest.yaml", MANIFEST)
        self.bundle.write("handlers.py", HANDLERS)

    def told(self, text: str) -> str:
        """A text without what differs from run to run: the folder, digests, ages, and names of objects."""
        text = text.replace(f"{self.bundle.path}/", "").replace(str(self.bundle.path), "<folder>")
        text = _OBJECT.sub("default/<object>", _HASH.sub("<digest>", text))
        return _AGO.sub(r"0s\1", text)

    def new_object(self) -> str:
        """Create an object that nobody has seen; returns its key."""
        name = f"new-{next(self._numbers)}"
        self.sandbox.create(config_map(name))
        return f"default/{name}"

    def heard_by(self, who: str, key: str) -> None:
        """Return when the handlers of both processes have printed that they have heard of an object."""
        for process in (self.text, self.json):
            until(f"{who} has heard of {key}", lambda p=process: f"{who} heard {key}" in p.out, timeout=30)


def config_map(name: str) -> dict[str, Any]:
    """A small object."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": {"size": "1"},
    }


@contextmanager
def opened(folder: Path) -> Iterator[Scene]:
    """The scene, with both processes at rest; they end as on SIGTERM, with 0."""
    with ExitStack() as stack:
        sandbox = stack.enter_context(SandboxThread())
        sandbox.load([config_map(f"old-{number}") for number in range(_FEW)])
        scene = Scene(folder, sandbox)
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(sandbox.kubeconfig()), "utf-8")
        scene.text, scene.json = (
            stack.enter_context(
                Process(
                    scene.bundle.path,
                    "--no-watch",
                    "--log-format",
                    form,
                    kubeconfig=kubeconfig,
                    env={"PYTHONPATH": str(scene.site.path)},
                )
            )
            for form in ("text", "json")
        )
        for process in (scene.text, scene.json):
            until("all has been heard", lambda p=process: len(p.out) >= _FEW, timeout=60)
        scene.good = scene.text.status()["bundleHash"]
        yield scene
        assert [process.stop() for process in (scene.text, scene.json)] == [0, 0]
