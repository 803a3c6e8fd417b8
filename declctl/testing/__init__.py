"""For tests of handlers and plugins, and of declctl itself: a whole controller, an API server in memory.

    def test_a_failed_pod_is_reported():
        with running("manifest.yaml", objects=[pod]) as controller:
            controller.wait_idle()
            controller.sandbox.patch("Pod", "web", {"status": {"phase": "Failed"}})
            controller.wait_idle()
            assert [e["reason"] for e in controller.sandbox.objects("Event")] == ["PodFailed"]

The controller is that of `declctl run --sandbox`, in threads of the test's process. Fixtures are in
`declctl.testing.pytest_plugin`. This package is not for production.
"""

from declctl.kit import AdvancingClock, ManualClock
from declctl.testing.bundle import BundleDir, ConfigMapDir, configmap_dir
from declctl.testing.controller import ControllerUnderTest, DefinitionWarning, Line, Logged, running, until

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
    "running",
    "until",
]
