"""What a message says: templates, changed fields, and limits of length."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from notify_changes import deployment

from declctl_notify.compose import compose
from declctl_notify.differences import differences, parse_path, without_secrets
from declctl_notify.groups import Entry, GroupKey, Message
from declctl_notify.outbox import Suppressed
from declctl_notify.templates import Expression, Template, TemplateFault
from declctl_notify.text import duration_text, plain_text


def _render(text: str, **values: Any) -> str:
    return Template(text).render(values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ obj.spec.replicas }}", "3"),
        ("{{ obj.spec.paused }}", "true"),
        ("{{ obj.spec.selector }}", '{"app": "é"}'),
        ("{{ obj.spec.values }}", '["a"]'),
        ("{{ obj.status.phase }}", "(missing: status.phase)"),
        ("{{ obj.status['phase'][0].x }}", "(missing: status.phase.0.x)"),
        ("{{ nothing }}", "(missing: nothing)"),
        ("{{ obj.keys }}", "(missing: keys)"),
        ("{{ obj.status.phase | default('none') }}", "none"),
        ("{% if obj.status.phase %}x{% else %}y{% endif %}", "y"),
        ("{{ obj.metadata.labels['app.kubernetes.io/name'] }}", "(missing: labels.app.kubernetes.io/name)"),
        ("{{ obj.name }} in {{ obj.namespace }}", "web in shop"),
    ],
)
def test_templates_show_fields_and_what_is_missing(text: str, expected: str) -> None:
    """A field that an object lacks is shown as missing, and is no failure."""
    obj = deployment(replicas=3, paused=True, selector={"app": "é"}, values=["a"])
    assert _render(text, obj=obj) == expected


@pytest.mark.parametrize(
    "text",
    [
        "{{ obj.metadata.update({'a': 1}) }}",
        "{{ obj.metadata.pop('name') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ obj.spec.replicas + 'x' }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10**9) %}{% endfor %}",
    ],
)
def test_a_template_that_fails_is_named(text: str) -> None:
    """A template that leaves the sandbox, changes an object or does not fit it is a fault with its text."""
    obj = deployment(replicas=3)
    with pytest.raises(TemplateFault, match="Error in "):
        _render(text, obj=obj)
    assert obj == deployment(replicas=3)


def test_a_template_without_an_end_is_cut() -> None:
    """An annotation with a megabyte is not a megabyte in the memory of each message."""
    text = "{% for i in range(90000) %}{{ obj.text }}{% endfor %}"
    assert len(_render(text, obj={"text": "x" * 10_000})) == 32_768


@pytest.mark.parametrize("text", ["{{ obj.", "{% if %}", "{{ x | nofilter }}", "{% endfor %}"])
def test_a_template_that_can_not_be_compiled_is_a_fault(text: str) -> None:
    """It is found when the manifest is loaded, and not at the first change."""
    with pytest.raises(TemplateFault):
        Template(text)


def test_conditions_read_the_same_fields() -> None:
    """A condition is an expression of the same language; a missing field makes it false."""
    obj = deployment(replicas=3)
    assert Expression("obj.spec.replicas > 2 and obj.kind == 'Deployment'").evaluate({"obj": obj})
    assert not Expression("obj.status.phase == 'Failed'").evaluate({"obj": obj})
    with pytest.raises(TemplateFault, match="UndefinedError"):
        Expression("obj.spec.limit > 2").evaluate({"obj": obj})
    with pytest.raises(TemplateFault):
        Expression("obj.spec.")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a\x1b[31mb\x07\u202ec", "a[31mbc"),
        ("a\nb\tc", "a\nb\tc"),
        ("<!channel> and <@U012>", "<\u200b!channel> and <\u200b@\u200bU012>"),
        ("@everyone, @Here!", "@\u200beveryone, @\u200bHere!"),
        ("<users/all> <https://a|b>", "<\u200busers/all> <\u200bhttps://a|b>"),
        ("[a](https://b) @room @**all**", "[a]\u200b(https://b) @\u200broom @\u200b**all**"),
        ("mail@example.dev web@sha256:0a", "mail@example.dev web@sha256:0a"),
        ("team-a", "team-a"),
        (None, "null"),
    ],
)
def test_values_of_objects_control_nothing(value: Any, expected: str) -> None:
    """An annotation can neither write to a terminal nor call all members of a channel."""
    assert plain_text(value) == expected
    assert _render("{{ value }}", value=value) == expected


@given(
    text=st.sampled_from(["@everyone", "a@here", "<!channel>", "<@U0>", "<users/all>", "<https://a|b>"]),
    cuts=st.lists(st.integers(0, 13), max_size=3),
)
def test_values_side_by_side_call_nobody(text: str, cuts: list[int]) -> None:
    """Two annotations in one line, or one behind the `@` of a template, make no mention together."""
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    parts = [text[begin:end] for begin, end in pairwise(places)]
    assert text not in _render("{% for part in parts %}{{ part }}{% endfor %}", parts=parts)
    assert "@everyone" not in _render("@{{ value }}", value="everyone")


def test_the_author_of_a_template_may_call_a_channel() -> None:
    """`<!here>` in a template is meant so, even beside a value that is not."""
    assert _render("<!here> {{ x }}", x="<!here>") == "<!here> <\u200b!here>"


def test_changed_fields_are_shown_by_name() -> None:
    """Items with a name or a type are compared by it; the wanted state comes before the observed one."""
    old = {
        "status": {"conditions": [{"type": "Ready", "status": "True", "at": "2026-01-01T00:00:00Z"}]},
        "metadata": {"labels": {"app.kubernetes.io/name": "a"}, "resourceVersion": "1"},
        "spec": {"containers": [{"name": "b", "image": "x:1"}], "args": ["a"], "gone": 1},
    }
    new = {
        "status": {"conditions": [{"type": "Ready", "status": "False", "at": "2026-01-01T00:00:09Z"}]},
        "metadata": {"labels": {"app.kubernetes.io/name": "b"}, "resourceVersion": "2"},
        "spec": {"containers": [{"name": "a"}, {"name": "b", "image": "x:2"}], "args": ["a", "b"]},
    }
    found = differences(old, new, ignore=[parse_path("metadata.resourceVersion")])
    assert [str(one) for one in found] == [
        'spec.containers[a]: unset → {"name": "a"}',
        "spec.containers[b].image: x:1 → x:2",
        'spec.args: ["a"] → ["a", "b"]',
        "spec.gone: 1 → unset",
        "metadata.labels[app.kubernetes.io/name]: a → b",
        "status.conditions[Ready].status: True → False",
        "status.conditions[Ready].at: 2026-01-01T00:00:00Z → 2026-01-01T00:00:09Z",
    ]
    assert [bool(one.digest) for one in found] == [True] * 6 + [False]
    times = differences(old, new, ignore=[parse_path("status.conditions[*].at"), ("spec",), ("metadata",)])
    assert [one.path for one in times] == ["status.conditions[Ready].status"]


def test_values_of_secrets_are_shown_nowhere() -> None:
    """A reader sees which key of a Secret has changed, and no value, not even in an annotation."""
    old = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "a", "annotations": {"last-applied": "hunter2"}},
        "data": {"password": "hunter2"},
    }
    new = {**old, "data": {"password": "hunter3", "other": "hunter4"}, "stringData": {"x": "hunter5"}}
    new["metadata"] = {"name": "a", "annotations": {"last-applied": "hunter6"}, "labels": {"a": "b"}}
    text = "\n".join(str(one) for one in differences(old, new))
    text += _render("{{ obj }} {{ obj.data.password }}", obj=without_secrets(new))
    assert "hunter" not in text
    assert "data.password: (hidden) → (hidden)" in text
    assert "data.other: unset → (hidden)" in text
    assert '"other": "(hidden)"' in text
    assert "metadata.labels: unset" in text


def _message(*entries: Entry, more: int = 0) -> Message:
    group = GroupKey("rollouts", (("namespace", "shop"), ("kind", "")))
    return Message(group, "warning", list(entries), more)


def _entry(name: str, body: str = "", changes: int = 1, *, repeats: bool = False) -> Entry:
    return Entry((name, ""), f"Modified {name}", body, changes, repeats)


def _compose(message: Message, *, suppressed: int = 0, title: int = 250, body: int = 4000) -> tuple[str, str]:
    return compose(message, Suppressed(suppressed, 100.0), now=220.0, title_limit=title, body_limit=body)


def test_one_change_has_its_own_title_and_body() -> None:
    """A single change is a message as its templates say."""
    assert _compose(_message(_entry("web", "replicas: 1 → 2\n"))) == ("Modified web", "replicas: 1 → 2")
    assert _compose(_message(_entry("web"))) == ("Modified web", "Modified web")


def test_several_changes_are_listed_under_their_group() -> None:
    """The title names rule and group; the last lines count what is not listed."""
    message = _message(_entry("web", "a: 1 → 2\nb: 1 → 2", 3), _entry("db", changes=40, repeats=True), more=2)
    title, body = _compose(message, suppressed=42)
    assert title == "[warning] 45 changes: rollouts, namespace shop"
    assert body.splitlines() == [
        "Modified web (3 times)",
        "  a: 1 → 2",
        "  b: 1 → 2",
        "Modified db (repeated 40 times)",
        "and 2 more changes",
        "and 42 more changes in the last 2 minutes",
    ]


@given(
    entries=st.lists(st.tuples(st.text(max_size=60), st.text(max_size=400), st.integers(1, 5)), min_size=1),
    more=st.integers(0, 3),
    suppressed=st.integers(0, 10**6),
    title_limit=st.sampled_from([0, 1, 20, 250]),
    body_limit=st.integers(100, 2000),
)
def test_a_message_keeps_the_limits_of_its_target(
    entries: list[tuple[str, str, int]], more: int, suppressed: int, title_limit: int, body_limit: int
) -> None:
    """However much there is to say: the limits hold, and the title of a service without titles fits too."""
    listed = [Entry((title, ""), title, body, changes) for title, body, changes in entries]
    title, body = _compose(
        _message(*listed, more=more), suppressed=suppressed, title=title_limit, body=body_limit
    )
    assert len(title) + len(body) + 2 <= body_limit if title_limit == 0 else len(title) <= title_limit
    assert len(body) <= body_limit


def test_changes_that_do_not_fit_are_counted() -> None:
    """A text message of a pager lists what fits, and has the number of the others."""
    _, body = _compose(_message(*[_entry(f"{n:02}", "x" * 30, 2) for n in range(10)]), body=250)
    lines = body.splitlines()
    assert lines[-1] == "and 14 more changes"
    assert lines[0] == "Modified 00 (2 times)"


def test_durations_are_for_people() -> None:
    """The period of a summary."""
    texts = [duration_text(seconds) for seconds in (0.0, 1.2, 60.0, 61.0, 7200.0, 86_400.0)]
    assert texts == ["second", "2 seconds", "minute", "2 minutes", "2 hours", "day"]
