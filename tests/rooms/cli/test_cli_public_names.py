"""The public names of the package."""

import ast
from importlib import import_module
from pathlib import Path

import declctl

NAMES = [
    "AlreadyExists", "AlreadyOwned", "AppliedSet", "BucketRateLimiter", "CacheSnapshot", "Cause",
    "Change", "ChangeReason", "ChangeType", "Client", "Column", "Condition", "Conflict", "Context",
    "CrossNamespaceOwner", "CustomResource", "DeclctlError", "DeletedFinalStateUnknown", "Difference",
    "Duration", "FakeControllerSource", "FilteringResourceEventHandler", "InformerWatcher",
    "InvalidObject", "InvalidWrite", "ItemExponentialFailureRateLimiter", "ItemFastSlowRateLimiter",
    "Lister", "ManifestErrors", "MaxOfRateLimiter", "NoStatusSubresource", "NotLeader", "NotSynced",
    "Object", "ObjectEvent", "ObjectKey", "ObjectView", "Priority", "RateLimiter", "RateLimitingQueue",
    "ReflectorOptions", "Registration", "Request", "Requeue", "ResourceEventHandler",
    "ResourceEventHandlerFuncs", "RetryWatcher", "Selection", "SharedIndexInformer",
    "SharedInformerFactory", "StatusError", "Terminal", "TimedOut", "UndeclaredWrite", "UnknownIndex",
    "UnknownNamespace", "UsageError", "WatchEnded", "WithMaxWaitRateLimiter", "WorkQueue", "WriteError",
    "Written", "__version__", "custom_resource", "default_rate_limiter", "diff", "field", "field_index",
    "hookimpl", "hookspec", "immutable", "informer_watcher", "list_map", "parse_duration",
    "preserve_unknown_fields", "rule", "rules", "run_workers", "until", "until_with_sync",
    "wait_for_cache_sync",
]  # fmt: skip


def test_the_public_names_are_these():
    """What plugins and programs import from `declctl` changes only on purpose."""
    assert declctl.__all__ == NAMES == sorted(NAMES)
    assert set(NAMES) <= set(dir(declctl))


def test_type_checkers_see_the_same_names():
    """An editor knows every public name, and from the room that it is loaded from."""
    tree = ast.parse(Path(declctl.__file__).read_text("utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: str(statement.module).removeprefix("declctl.")
        for statement in guarded.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    for name, room in seen.items():
        assert getattr(declctl, name) is getattr(import_module(f"declctl.{room}"), name)
    assert {*seen, "__version__"} == set(NAMES)
