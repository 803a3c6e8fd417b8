"""Strategic merge patch, as kubectl apply, edit, label and set image send it."""

from typing import Any

import pytest

from declctl.sandbox.patches import strategic_merge
from declctl.sandbox.status import Refusal


def containers(*images: str, **more: Any) -> dict[str, Any]:
    """A spec with a container for each `name:tag`, called by its name."""
    return {"spec": {"containers": [{"name": each[0], "image": each} for each in images], **more}}


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [
        (containers("a:1", "b:1"), containers("b:2"), containers("a:1", "b:2")),
        (
            containers("a:1", "b:1"),
            {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}},
            containers("b:1"),
        ),
        (
            containers("a:1", "b:1"),
            {"spec": {"containers": [{"$patch": "replace"}, {"name": "c"}]}},
            {"spec": {"containers": [{"name": "c"}]}},
        ),
        ({"strategy": {"y": 2}}, {"strategy": {"$patch": "replace", "x": 1}}, {"strategy": {"x": 1}}),
        # As kubectl does for a changed update strategy.
        (
            {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}},
            {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}},
            {"strategy": {"type": "Recreate"}},
        ),
        (
            {"metadata": {"finalizers": ["a", "b"]}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]}},
            {"metadata": {"finalizers": ["c", "b"]}},
        ),
        # What it doesn't name stays before what it stood before.
        (
            containers("a:1", "x:1", "b:1"),
            containers("b:1", **{"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}),
            containers("x:1", "b:1", "a:1"),
        ),
        (
            {"type": "ClusterIP", "ports": [{"port": 80}]},
            {"ports": [{"port": 81}]},
            {"type": "ClusterIP", "ports": [{"port": 81}, {"port": 80}]},
        ),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
    ],
)
def test_a_patch_is_merged_as_the_directives_say(target, patch, merged):
    """Containers by name; `$patch`, `$retainKeys`, `$deleteFromPrimitiveList` and `$setElementOrder`."""
    assert strategic_merge(target, patch) == merged


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"spec": {"containers": [{"image": "x"}]}}, "does not contain declared merge key: name"),
        ({"$patch": "dance"}, "unknown patch type found: dance"),
    ],
)
def test_an_element_without_its_key_and_an_unknown_directive_are_refused(patch, said):
    with pytest.raises(Refusal, match=said):
        strategic_merge(containers("a:1"), patch)
