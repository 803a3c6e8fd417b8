"""What `declctl validate` says to somebody who has made a common mistake: the sentence, and its place."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rooms.cli.hello import MANIFEST


@pytest.mark.parametrize(
    ("entry_point", "suggestion"),
    [
        ("handlers.on_pod", 'did you mean "handlers:on_pod"? A colon stands before what is in a module'),
        ("handlers.on_pods", 'did you mean "handlers:on_pod"? A colon stands before what is in a module'),
        ("json.dumps", 'did you mean "json:dumps"? A colon stands before what is in a module'),
        ("handler:on_pod", 'did you mean "handlers"?'),
        ("handlres", 'did you mean "handlers"?'),
        ("nothing.like_it:f", "create nothing/like_it.py beside the manifest"),
    ],
)
def test_an_entry_point_that_is_nearly_right_is_put_right(
    declctl: Callable, hello: Path, entry_point: str, suggestion: str
):
    """A dot for a colon, or a letter too few: the help has the entry point that was meant."""
    (hello / "manifest.yaml").write_text(MANIFEST.replace("handlers:on_pod", entry_point))
    ended = declctl("validate", "manifest.yaml")
    assert ended.status == 1
    assert "manifest.yaml:9:19: error DCL040" in ended.err
    assert f"\n  help: {suggestion}\n" in ended.err


@pytest.mark.parametrize(
    ("parameter", "suggestion"),
    [
        ("pod", 'write "obj" for the object, whatever its kind'),
        ("body", 'write "obj" for the object, whatever its kind'),
        ("spec", 'write "obj" and read obj["spec"]'),
        ("logger", 'write "ctx" and read ctx.log'),
        ("chnage", 'did you mean "change"?'),
    ],
)
def test_a_parameter_of_another_framework_is_led_to_its_place(
    declctl: Callable, hello: Path, parameter: str, suggestion: str
):
    """`def on_pod(pod)` is what people write first: the object is `obj`, and `old` is not suggested."""
    (hello / "handlers.py").write_text(f"def on_pod({parameter}):\n    pass\n")
    ended = declctl("validate", "manifest.yaml")
    assert f"handlers.py:1:12: error DCL046: on_pod takes '{parameter}'" in ended.err
    assert f"\n  help: {suggestion}" in ended.err
    assert "declctl_event gives change, obj, old, ctx\n" in ended.err


@pytest.mark.parametrize("key", ["app.kubernetes.io/name", "example.com", "team/name"])
def test_a_label_with_dots_is_shown_as_it_has_to_be_written(declctl: Callable, hello: Path, key: str):
    """`metadata.labels.example.com` would be an index that stays empty for ever."""
    indexed = f"kind: Pod, indexers: [{{name: app, fieldPath: metadata.labels.{key}}}]"
    (hello / "manifest.yaml").write_text(MANIFEST.replace("kind: Pod", indexed))
    ended = declctl("validate", "manifest.yaml")
    assert ended.status == 1
    assert f"the key '{key}' has to stand in brackets, as it holds dots or slashes" in ended.err
    assert f"\n  help: write metadata.labels['{key}']\n" in ended.err


def test_an_import_that_waits_is_shown_at_the_line_that_waits(declctl: Callable, hello: Path):
    """Who imports something slow reads which line it was, not only that something was slow."""
    (hello / "manifest.yaml").write_text(MANIFEST.replace("spec:", "spec:\n  reload: {preflightTimeout: 3s}"))
    (hello / "handlers.py").write_text("import time\ndef on_pod(obj): pass\ntime.sleep(60)\n")
    ended = declctl("validate", "manifest.yaml")
    assert ended.err.startswith(
        "handlers.py:3:1: error DCL045: handlers:on_pod: importing it took longer than 3 s; "
        "this line ran when the time was over\n  3 | time.sleep(60)\n    | ^\n"
    )


@pytest.fixture(name="plugin")
def _plugin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Installs a plugin `pager` with the source that it is given, for child processes as well."""
    site = folder / "site"
    info = site / "pager-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pager\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[declctl]\npager = pager_plugin\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    importlib.invalidate_caches()

    def install(source: str) -> None:
        (site / "pager_plugin.py").write_text(source)

    yield install
    sys.modules.pop("pager_plugin", None)


def _with_plugin(config: str) -> str:
    return f"{MANIFEST}  plugins:\n    - name: pager\n      config:\n{config}"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("x = 1\n\nraise OSError('no disk')\n", "OSError: no disk"),
        ("x = 1\n\ndef f(:\n    pass\n", "SyntaxError"),
        ("x = 1\n\nimport not_there\n", "ModuleNotFoundError: No module named 'not_there'"),
    ],
)
def test_a_broken_plugin_is_shown_with_file_and_line(
    declctl: Callable, hello: Path, plugin: Callable, source: str, told: str
):
    """Who has installed a plugin that can't be imported reads where it broke."""
    plugin(source)
    (hello / "manifest.yaml").write_text(_with_plugin("        {}\n"))
    ended = declctl("validate", "manifest.yaml")
    assert "error DCL083: the plugin pager (pager 1.0) can't be loaded: " in ended.err
    assert told in ended.err
    assert f"({hello}/site/pager_plugin.py:3)" in ended.err


FAILING = "def connect(url):\n    raise OSError('no disk')\n\nconnect('https://pager')\n"
FAILING_TRACE = """\
      File "SITE/pager_plugin.py", line 4, in <module>
        connect('https://pager')
      File "SITE/pager_plugin.py", line 2, in connect
        raise OSError('no disk')
    OSError: no disk
"""


def _without_carets(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if line.strip(" ^\n"))


@pytest.mark.parametrize("command", [["validate"], ["run", "--sandbox", "--once"]])
def test_a_broken_plugin_is_shown_with_the_end_of_its_traceback(
    declctl: Callable, hello: Path, plugin: Callable, command: list[str]
):
    """Who has to mend it sees how it got there: its own frames, and none of Python's import."""
    plugin(FAILING)
    (hello / "manifest.yaml").write_text(_with_plugin("        {}\n"))
    ended = declctl(*command, "manifest.yaml")
    assert ended.status == 1
    assert FAILING_TRACE.replace("SITE", f"{hello}/site") in _without_carets(ended.err)
    assert "importlib" not in ended.err


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("way", ["option", "global option", "variable"])
def test_no_plugins_leaves_the_plugins_of_a_manifest_out(
    declctl: Callable,
    hello: Path,
    plugin: Callable,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    installed: bool,
):
    """The way out when a plugin breaks the process, and a check on a machine that does not have it."""
    monkeypatch.setenv("DECLCTL_LOAD_PLUGINS", "other")  # put back what --no-plugins sets
    plugin("raise OSError('imported')\n")
    name = "pager" if installed else "nobody-has-this"
    (hello / "manifest.yaml").write_text(_with_plugin("        {}\n").replace("pager", name))
    local = ["--no-plugins"] if way == "option" else []
    before = ["--no-plugins"] if way == "global option" else []
    checked = declctl(*before, "validate", "manifest.yaml", *local)
    assert (checked.status, "is valid" in checked.out) == (0, True)
    warning = f"manifest.yaml:11:13: warning DCL089: the plugin {name} is left out: "
    assert warning in checked.err
    assert "; its handlers are not called\n" in checked.err
    ran = declctl(*before, "run", "manifest.yaml", "--sandbox", "--once", *local)
    assert ran.status == 0
    assert "imported" not in ran.err + checked.err


def test_a_broken_plugin_has_its_traceback_as_json(declctl: Callable, hello: Path, plugin: Callable):
    """For tools: a field of the fault; other faults don't have it."""
    plugin(FAILING)
    (hello / "manifest.yaml").write_text(_with_plugin("        {}\n    - {name: not-there}\n"))
    found = {
        fault["code"]: fault for fault in json.loads(declctl("validate", "-o", "json", "manifest.yaml").out)
    }
    assert found["DCL083"]["traceback"].endswith("raise OSError('no disk')\nOSError: no disk")
    assert "traceback" not in found["DCL080"]


def test_a_plugin_that_hangs_is_named_with_its_line(declctl: Callable, hello: Path, plugin: Callable):
    """The import of the child did not end: it is said of which plugin, of which distribution, and where."""
    plugin("import time\n\ntime.sleep(1000)\n")
    text = _with_plugin("        {}\n").replace("spec:\n", "spec:\n  reload: {preflightTimeout: 2s}\n")
    (hello / "manifest.yaml").write_text(text)
    ended = declctl("validate", "manifest.yaml")
    assert (
        "manifest.yaml:12:13: error DCL045: the plugin pager (pager 1.0): importing it took longer than 2 s; "
        f"{hello}/site/pager_plugin.py:3 ran when the time was over\n" in ended.err
    )


def test_a_plugin_that_takes_what_no_hook_gives_is_shown_with_file_and_line(
    declctl: Callable, hello: Path, plugin: Callable
):
    """The function of a plugin is not in the handlers' folder: its file is named."""
    plugin("import declctl\n\n@declctl.hookimpl\ndef declctl_event(pod):\n    pass\n")
    (hello / "manifest.yaml").write_text(_with_plugin("        {}\n"))
    ended = declctl("validate", "manifest.yaml")
    assert (
        "the plugin pager (pager 1.0): declctl_event takes 'pod', which declctl_event does not give"
        in ended.err
    )
    assert f"({hello}/site/pager_plugin.py:3)" in ended.err


def test_every_fault_of_a_plugins_config_is_shown_at_its_key(
    declctl: Callable, hello: Path, plugin: Callable
):
    """Three slips in a config are three faults of one run, each at the line where it stands."""
    plugin(
        "import declctl\n\n@declctl.hookimpl\ndef declctl_config_schema():\n"
        "    return {'additionalProperties': False, 'properties': {'channel': {'type': 'string'},"
        " 'level': {'enum': ['a', 'b']}}}\n"
    )
    (hello / "manifest.yaml").write_text(
        _with_plugin("        chanel: '#ops'\n        level: c\n        channel: 5\n")
    )
    ended = declctl("validate", "manifest.yaml")
    assert "manifest.yaml:13:9: error DCL082: pager: config: unknown key 'chanel'\n" in ended.err
    assert '  help: did you mean "channel"?\n' in ended.err
    assert 'manifest.yaml:14:16: error DCL082: pager: config.level: this is none of ["a", "b"]\n' in ended.err
    assert (
        'manifest.yaml:15:18: error DCL082: pager: config.channel: this is not of type "string"\n'
        in ended.err
    )
    assert "  help: put the value in quotes\n" in ended.err


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        ("    - name: pager\n", "11:13"),
        ("    - name: pager\n      config: {}\n", "12:7"),
        ("    - {name: pager, config: {}}\n", "11:21"),
    ],
    ids=["no config", "block", "flow"],
)
def test_a_missing_key_is_shown_at_the_config_or_the_plugin(
    declctl: Callable, hello: Path, plugin: Callable, lines: str, place: str
):
    """Where the key has to be added, and what it is."""
    plugin(
        "import declctl\n\n@declctl.hookimpl\ndef declctl_config_schema():\n"
        "    return {'required': ['channel'], 'properties': {'channel': {'description': 'Where to.'}}}\n"
    )
    (hello / "manifest.yaml").write_text(f"{MANIFEST}  plugins:\n{lines}")
    ended = declctl("validate", "manifest.yaml")
    assert (
        f"manifest.yaml:{place}: error DCL082: pager: config: 'channel' is a required property\n" in ended.err
    )
    assert "  help: add channel: Where to.\n" in ended.err


def test_faults_of_values_from_elsewhere_are_shown_there(
    declctl: Callable, hello: Path, plugin: Callable, monkeypatch: pytest.MonkeyPatch
):
    """A value of a file is a fault of that file, one of a variable of its entry; neither value is shown."""
    plugin(
        "import declctl\n\n@declctl.hookimpl\ndef declctl_config_schema():\n"
        "    return {'additionalProperties': False, 'properties': {'token': {'pattern': '^xoxb-'},"
        " 'port': {'type': 'integer'}}}\n"
    )
    (hello / "secrets").mkdir()
    (hello / "secrets" / "token").write_text("s3cret\n")
    monkeypatch.setenv("PAGER_PORT", "8125")
    (hello / "manifest.yaml").write_text(
        f"{MANIFEST}  plugins:\n    - name: pager\n      configFrom:\n"
        "        - {name: token, file: secrets/token}\n"
        "        - {name: port, env: PAGER_PORT}\n"
        "        - {name: tokne, file: secrets/token}\n"
    )
    ended = declctl("validate", "manifest.yaml")
    assert (
        'secrets/token:1:1: error DCL082: pager: config.token: this doesn\'t match the pattern "^xoxb-"\n'
        in ended.err
    )
    assert (
        'manifest.yaml:14:29: error DCL082: pager: config.port: this is not of type "integer" '
        "(of the variable PAGER_PORT)\n" in ended.err
    )
    assert "a value of configFrom is always text" in ended.err
    assert "manifest.yaml:15:18: error DCL082: pager: config: unknown key 'tokne'\n" in ended.err
    assert '  help: did you mean "token"?\n' in ended.err
    assert "s3cret" not in ended.err
    assert "8125" not in ended.err


CHECKING = """\
import declctl


@declctl.hookimpl
def declctl_config_schema():
    return {{"type": "object"}}


@declctl.hookimpl
def declctl_check_config(config, resources):
    {body}
"""
FOUND = """\
return [
        {"path": ["rules", 1, "title"], "message": f"no template; resources are {list(resources)}"},
        {"path": ["url"], "message": "it is not here", "suggestion": "set it", "severity": "warning"},
        {"message": "two of them"},
    ]
"""
RULES = "        rules:\n          - {title: a}\n          - title: b\n        url: here\n"


def test_a_plugin_shows_what_a_schema_can_not_say(declctl: Callable, hello: Path, plugin: Callable):
    """Each fault at its place in the config, all at once; a warning alone does not refuse the manifest."""
    plugin(CHECKING.format(body=FOUND))
    (hello / "manifest.yaml").write_text(_with_plugin(RULES))
    ended = declctl("validate", "manifest.yaml", "-o", "json")
    assert ended.status == 1
    faults = [each for each in json.loads(ended.out) if each["code"] == "DCL082"]
    told = [(each["line"], each["severity"], each["message"]) for each in faults]
    assert told == [
        (13, "error", "pager: config: two of them"),
        (15, "error", "pager: config.rules[1].title: no template; resources are ['pods']"),
        (16, "warning", "pager: config.url: it is not here"),
    ]
    warned = CHECKING.format(body="return [{'path': ['url'], 'message': 'absent', 'severity': 'warning'}]")
    plugin(warned)
    ended = declctl("validate", "manifest.yaml")
    assert (ended.status, "is valid" in ended.out) == (0, True)
    assert "manifest.yaml:16:14: warning DCL082: pager: config.url: absent" in ended.err


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return None", None),
        ("return []", None),
        ("raise OSError('no disk')", "OSError: no disk"),
        ("return (1 / 0 for _ in 'a')", "ZeroDivisionError"),
        ("return [{'path': ['a']}]", "missing required field `message`"),
        ("return [{'message': 'm', 'severity': 'info'}]", "is no list of faults"),
        ("return [{'message': 'm', 'line': 3}]", "unknown field `line`"),
        ("return 3", "is no list of faults"),
    ],
)
def test_a_check_of_a_plugin_that_fails_is_a_fault_of_the_plugin(
    declctl: Callable, hello: Path, plugin: Callable, body: str, told: str | None
):
    """It names the plugin, and neither hides other faults nor ends the command."""
    plugin(CHECKING.format(body=body))
    (hello / "manifest.yaml").write_text(_with_plugin(RULES))
    ended = declctl("validate", "manifest.yaml")
    assert ended.status == int(told is not None)
    if told is not None:
        assert "error DCL083: the plugin pager (pager 1.0): " in ended.err
        assert told in ended.err


@pytest.mark.parametrize("command", [["run", "--sandbox", "--once"], ["plan"], ["generate", "rbac"]])
def test_the_check_of_a_plugin_is_for_validate_alone(
    declctl: Callable, hello: Path, plugin: Callable, command: list[str]
):
    """A process that runs asks declctl_prepare; a check may be slow."""
    plugin(CHECKING.format(body="return [{'message': 'refused'}]"))
    (hello / "manifest.yaml").write_text(_with_plugin(RULES))
    ended = declctl(*command, "manifest.yaml")
    assert ended.status in (0, 2)  # the status 2 of a plan says that there are changes
    assert "refused" not in ended.err + ended.out
    assert "refused" in declctl("doctor", "manifest.yaml").out
