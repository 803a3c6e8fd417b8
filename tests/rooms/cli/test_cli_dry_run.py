"""`declctl run --dry-run`: nothing is stored, and the differences are printed."""

from typing import Any

from declctl.cli.dry_run import DryRunPrinter, diff
from declctl.objects import GroupVersionKind, ObjectKey
from declctl.writes import WriteOrigin, WriteVerb, Written

ORIGIN = WriteOrigin("web", 3)
METADATA = {"name": "settings", "namespace": "team-a", "uid": "u", "resourceVersion": "7"}
METADATA |= {"managedFields": [{"manager": "x"}]}
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": METADATA, "data": {"a": "1", "b": "2"}}


def written(obj: dict[str, Any], verb: WriteVerb = WriteVerb.APPLY, kind: str = "ConfigMap") -> Written:
    """What the server answers to a dry run."""
    gvk = GroupVersionKind.of("v1", kind)
    return Written(verb, gvk, ObjectKey("team-a/settings"), "u", "7", obj, dry_run=True)


def test_a_change_is_a_unified_diff_of_what_a_person_wrote():
    """Versions, uids and managed fields are the server's, and are left out, but not of the answer."""
    after = {**MAP, "data": {"a": "1", "b": "3"}, "metadata": {**METADATA, "resourceVersion": "9"}}
    assert diff(written(after), ORIGIN, MAP).splitlines() == [
        "--- v1 ConfigMap team-a/settings (live)",
        "+++ v1 ConfigMap team-a/settings (apply by web)",
        "@@ -1,7 +1,7 @@",
        " apiVersion: v1",
        " data:",
        "   a: '1'",
        "-  b: '2'",
        "+  b: '3'",
        " kind: ConfigMap",
        " metadata:",
        "   name: settings",
    ]
    assert after["metadata"]["managedFields"]


def test_a_new_object_and_a_deleted_one_are_whole():
    """Every line is added, or removed."""
    new, gone = diff(written(MAP), ORIGIN, None), diff(written({}, WriteVerb.DELETE), ORIGIN, MAP)
    assert new.startswith("--- /dev/null\n+++ v1 ConfigMap team-a/settings (apply by web)\n")
    assert gone.startswith("--- v1 ConfigMap team-a/settings (live)\n+++ /dev/null\n")
    for text, mark in ((new, "+"), (gone, "-")):
        assert all(line.startswith(mark) for line in text.splitlines()[3:])


def test_values_of_secrets_are_not_shown():
    """As `kubectl diff`: whether a value changes is shown, and not the value."""
    before = {"kind": "Secret", "metadata": {}, "data": {"same": "AAA", "changed": "BBB", "gone": "CCC"}}
    after = {"kind": "Secret", "metadata": {}, "data": {"same": "AAA", "changed": "DDD", "new": "EEE"}}
    text = diff(written(after, kind="Secret"), ORIGIN, before)
    assert not any(value in text for value in ("AAA", "BBB", "CCC", "DDD", "EEE"))
    lines = text.splitlines()
    assert "-  changed: '*** (before)'" in lines
    assert "+  changed: '*** (after)'" in lines
    assert ("+  new: '***'" in lines, "-  gone: '***'" in lines) == (True, True)


def test_what_changes_nothing_or_was_shown_is_not_printed(capsys):
    """A handler that is called again and again for an object prints its diff once."""
    tell = DryRunPrinter()
    after = {**MAP, "data": {}}
    for _ in range(3):
        tell(written(after), ORIGIN, MAP)
    assert capsys.readouterr().out.count("(live)") == 1
    tell(written(MAP), ORIGIN, MAP)
    assert capsys.readouterr().out == ""
    tell(written(after), ORIGIN, MAP)
    assert capsys.readouterr().out.count("(live)") == 1
