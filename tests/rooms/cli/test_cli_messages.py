"""What `declctl validate` says to somebody who has made a common mistake: the sentence, and its place."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rooms.cli.conftest import Command
from tests.rooms.cli.hello import MANIFEST

pytestmark = pytest.mark.thorough


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
def test_an_entry_point_that_is_nearly_right_is_put_right(declctl, hello, entry_point, suggestion):
    """A dot for a colon, or a letter too few: the help has the entry point that was meant."""
    (hello / "manifest.yaml").write_text(MANIFEST.replace("handlers:on_pod", entry_point))
    said = declctl.refused("validate", "manifest.yaml", status=1)
    assert "manifest.yaml:9:19: error DCL040" in said
    assert f"\n  help: {suggestion}\n" in said


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
def test_a_parameter_of_another_framework_is_led_to_its_place(declctl, hello, parameter, suggestion):
    """`def on_pod(pod)` is what people write first: the object is `obj`, and `old` is not suggested."""
    (hello / "handlers.py").write_text(f"def on_pod({parameter}):\n    pass\n")
    ended = declctl("validate", "manifest.yaml")
    assert f"handlers.py:1:12: error DCL046: on_pod takes '{parameter}'" in ended.err
    assert f"\n  help: {suggestion}" in ended.err
    assert "declctl_event gives change, obj, old, ctx\n" in ended.err


@pytest.mark.parametrize("key", ["app.kubernetes.io/name", "example.com", "team/name"])
def test_a_label_with_dots_is_shown_as_it_has_to_be_written(declctl, hello, key):
    """`metadata.labels.example.com` would be an index that stays empty for ever."""
    indexed = f"kind: Pod, indexers: [{{name: app, fieldPath: metadata.labels.{key}}}]"
    (hello / "manifest.yaml").write_text(MANIFEST.replace("kind: Pod", indexed))
    said = declctl.refused("validate", "manifest.yaml", status=1)
    assert f"the key '{key}' has to stand in brackets, as it holds dots or slashes" in said
    assert f"\n  help: write metadata.labels['{key}']\n" in said


@pytest.fixture(name="check")
def _check(declctl: Command, hello: Path, install: Callable) -> Callable:
    """Validates a manifest with a plugin `pager`, which has this source."""

    def check(source: str, entry: str = "    - name: pager\n      config: {}\n", *arguments: str):
        install("pager", source)
        (hello / "manifest.yaml").write_text(f"{MANIFEST}  plugins:\n{entry}")
        return declctl(*(arguments or ("validate",)), "manifest.yaml")

    return check


def config(lines: str) -> str:
    return f"    - name: pager\n      config:\n{lines}"


def with_schema(schema: str) -> str:
    return f"import declctl\n\n@declctl.hookimpl\ndef declctl_config_schema():\n    return {schema}\n"


PAGER = "the plugin pager (declctl_test_pager 1.2.0)"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("x = 1\n\nraise OSError('no disk')\n", "can't be loaded: OSError: no disk"),
        ("x = 1\n\ndef f(:\n    pass\n", "can't be loaded: SyntaxError"),
        ("x = 1\n\nimport not_there\n", "can't be loaded: ModuleNotFoundError: No module named 'not_there'"),
        (
            "import declctl\n\n@declctl.hookimpl\ndef declctl_event(pod):\n    pass\n",
            "declctl_event takes 'pod', which declctl_event does not give",
        ),
    ],
)
def test_a_broken_plugin_is_shown_with_file_and_line(check, hello, source, told):
    """Who has installed a plugin that can't be used reads where it broke, outside of the handlers' folder."""
    said = check(source).err
    assert PAGER in said
    assert ("error DCL083" in said) is ("can't be loaded" in told)
    assert told in said
    assert f"({hello}/site/declctl_test_pager.py:3)" in said


FAILING = "def connect(url):\n    raise OSError('no disk')\n\nconnect('https://pager')\n"
FAILING_TRACE = """\
      File "SITE/declctl_test_pager.py", line 4, in <module>
        connect('https://pager')
      File "SITE/declctl_test_pager.py", line 2, in connect
        raise OSError('no disk')
    OSError: no disk
"""


@pytest.mark.parametrize("command", [["validate"], ["run", "--sandbox", "--once"]])
def test_a_broken_plugin_is_shown_with_the_end_of_its_traceback(check, hello, command):
    """Who has to mend it sees how it got there: its own frames, and none of Python's import."""
    ended = check(FAILING, config("        {}\n"), *command)
    without_carets = [line for line in ended.err.splitlines(keepends=True) if line.strip(" ^\n")]
    assert FAILING_TRACE.replace("SITE", f"{hello}/site") in "".join(without_carets)
    assert ended.status == 1
    assert "importlib" not in ended.err


def test_a_broken_plugin_has_its_traceback_as_json(check):
    """For tools: a field of the fault; other faults don't have it."""
    entries = config("        {}\n    - {name: not-there}\n")
    found = {each["code"]: each for each in check(FAILING, entries, "validate", "-o", "json").document}
    assert found["DCL083"]["traceback"].endswith("raise OSError('no disk')\nOSError: no disk")
    assert "traceback" not in found["DCL080"]


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("way", ["option", "global option", "variable"])
def test_no_plugins_leaves_the_plugins_of_a_manifest_out(check, declctl, monkeypatch, way, installed):
    """The way out when a plugin breaks the process, and a check on a machine that does not have it."""
    monkeypatch.setenv("DECLCTL_LOAD_PLUGINS", "other")  # put back what --no-plugins sets
    name = "pager" if installed else "nobody-has-this"
    local = ["--no-plugins"] if way == "option" else []
    before = ["--no-plugins"] if way == "global option" else []
    entry = f"    - name: {name}\n      config: {{}}\n"
    checked = check("raise OSError('imported')\n", entry, *before, "validate", *local)
    warning = f"manifest.yaml:11:13: warning DCL089: the plugin {name} is left out: "
    assert [words in checked.err for words in (warning, "; its handlers are not called\n")] == [True, True]
    assert checked.status == 0
    assert "is valid" in checked.out
    ran = declctl.done(*before, "run", "manifest.yaml", "--sandbox", "--once", *local)
    assert "imported" not in ran.err + checked.err


@pytest.mark.thorough
def test_a_plugin_that_hangs_is_named_with_its_line(check, hello):
    """The import of the child did not end: it is said of which plugin, of which distribution, and where."""
    # The time limit of a pre-flight is that of a process: it passes for real.
    entry = "    - {name: pager, config: {}}\n  reload: {preflightTimeout: 2s}\n"
    told = f"manifest.yaml:11:14: error DCL045: {PAGER}: importing it took longer than 2 s; "
    line = f"{hello}/site/declctl_test_pager.py:3 ran when the time was over\n"
    assert told + line in check("import time\n\ntime.sleep(1000)\n", entry).err


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ("    - name: pager\n", "11:13"),
        ("    - name: pager\n      config: {}\n", "12:7"),
        ("    - {name: pager, config: {}}\n", "11:21"),
    ],
    ids=["no config", "block", "flow"],
)
def test_a_missing_key_is_shown_at_the_config_or_the_plugin(check, entry, place):
    """Where the key has to be added, and what it is."""
    schema = "{'required': ['channel'], 'properties': {'channel': {'description': 'Where to.'}}}"
    said = check(with_schema(schema), entry).err
    told = "error DCL082: pager: config: 'channel' is a required property"
    assert f"manifest.yaml:{place}: {told}\n" in said
    assert "  help: add channel: Where to.\n" in said


def test_faults_of_values_from_elsewhere_are_shown_there(check, write, monkeypatch):
    """A value of a file is a fault of that file, one of a variable of its entry; neither value is shown."""
    write("secrets/token", "s3cret\n")
    monkeypatch.setenv("PAGER_PORT", "8125")
    properties = "{'token': {'pattern': '^xoxb-'}, 'port': {'type': 'integer'}}"
    said = check(
        with_schema(f"{{'additionalProperties': False, 'properties': {properties}}}"),
        "    - name: pager\n      configFrom:\n"
        "        - {name: token, file: secrets/token}\n"
        "        - {name: port, env: PAGER_PORT}\n"
        "        - {name: tokne, file: secrets/token}\n",
    ).err
    port = 'manifest.yaml:14:29: error DCL082: pager: config.port: this is not of type "integer"'
    for words in (
        'secrets/token:1:1: error DCL082: pager: config.token: this doesn\'t match the pattern "^xoxb-"\n',
        f"{port} (of the variable PAGER_PORT)\n",
        "a value of configFrom is always text",
        "manifest.yaml:15:18: error DCL082: pager: config: unknown key 'tokne'\n",
        '  help: did you mean "token"?\n',
    ):
        assert words in said
    assert ("s3cret" in said, "8125" in said) == (False, False)


CHECKING = (
    with_schema('{{"type": "object"}}')
    + """

@declctl.hookimpl
def declctl_check_config(config, resources):
    {body}
"""
)
FOUND = """\
return [
        {"path": ["rules", 1, "title"], "message": f"no template; resources are {list(resources)}"},
        {"path": ["url"], "message": "it is not here", "suggestion": "set it", "severity": "warning"},
        {"message": "two of them"},
    ]
"""
RULES = config("        rules:\n          - {title: a}\n          - title: b\n        url: here\n")


def test_a_plugin_shows_what_a_schema_can_not_say(check):
    """Each fault at its place in the config, all at once; a warning alone does not refuse the manifest."""
    ended = check(CHECKING.format(body=FOUND), RULES, "validate", "-o", "json")
    faults = [each for each in ended.document if each["code"] == "DCL082"]
    assert [(each["line"], each["severity"], each["message"]) for each in faults] == [
        (13, "error", "pager: config: two of them"),
        (15, "error", "pager: config.rules[1].title: no template; resources are ['pods']"),
        (16, "warning", "pager: config.url: it is not here"),
    ]
    assert ended.status == 1
    warned = "return [{'path': ['url'], 'message': 'absent', 'severity': 'warning'}]"
    ended = check(CHECKING.format(body=warned), RULES)
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
def test_a_check_of_a_plugin_that_fails_is_a_fault_of_the_plugin(check, body, told):
    """It names the plugin, and neither hides other faults nor ends the command."""
    ended = check(CHECKING.format(body=body), RULES)
    assert ended.status == int(told is not None)
    if told is not None:
        assert f"error DCL083: {PAGER}: " in ended.err
        assert told in ended.err


@pytest.mark.parametrize("command", [["run", "--sandbox", "--once"], ["plan"], ["generate", "rbac"]])
def test_the_check_of_a_plugin_is_for_validate_alone(check, declctl, command):
    """A process that runs asks declctl_prepare; a check may be slow."""
    ended = check(CHECKING.format(body="return [{'message': 'refused'}]"), RULES, *command)
    assert ended.status in (0, 2)  # the status 2 of a plan says that there are changes
    assert "refused" not in ended.err + ended.out
    assert "refused" in declctl("doctor", "manifest.yaml").out
