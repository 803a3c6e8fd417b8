"""For tests of handlers and plugins, and of declctl itself: a whole controller, an API server in memory.

    def test_a_failed_pod_is_reported():
        with running("manifest.yaml", objects=[pod]) as controller:
            controller.wait_idle()
            controller.sandbox.patch("Pod", "web", {"status": {"phase": "Failed"}})
            controller.wait_idle()
            assert [e["reason"] for e in controller.sandbox.objects("Event")] == ["PodFailed"]

The controller is that of `declctl run --sandbox`, in threads of the test's process. Fixtures are in
`declctl.testing.pytest_plugin`. `fuzz` looks for a short life of objects that a controller does not stand
(with `declctl[fuzz]`). This package is not for production.
"""

from typing import TYPE_CHECKING, Any

from declctl.kit import AdvancingClock, ManualClock
from declctl.testing.bundle import BundleDir, ConfigMapDir, configmap_dir
from declctl.testing.controller import ControllerUnderTest, DefinitionWarning, Line, Logged, running, until

if TYPE_CHECKING:
    from declctl.testing.fuzzing import fuzz

__all__ = [
    "AdvancingClock",
    "BundleDir",
    "ConfigMapDir",
    "ControllerUnderTest",
    "DefinitionWarning",
    "Line",
    "Logged",
    "ManualClock",
    "configmap_dir",
    "fuzz",
    "running",
    "until",
]


def __getattr__(name: str) -> Any:
    """`fuzz`, which needs hypothesis: it is imported when it is first used."""
    if name == "fuzz":
        from declctl.testing.fuzzing import fuzz

        return fuzz
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
