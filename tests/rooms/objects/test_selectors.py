"""Selectors: what kubectl's `-l` and `--field-selector` mean here."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.objects import FieldSelector, LabelSelector, Requirement

LABELS = {"app": "web", "tier": "front", "size": "12", "empty": ""}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "app",
        "!old",
        "app=web",
        "app==web",
        "app = web",
        "app!=db",
        "old!=x",
        "app in (web,db)",
        "app in(web)",
        "old notin (x,y)",
        "app notin (db)",
        "empty=",
        "empty in ()",
        "empty in (x,)",
        "size>11",
        "size<13",
        "app=web,tier in (front, back),!old",
        "example.com/x!=1",
    ],
)
def test_selector_selects_as_kubectl_does(text):
    """Each form that kubectl accepts selects the object that it would select."""
    assert LabelSelector.parse(text).matches(LABELS)


@pytest.mark.parametrize(
    "text",
    [
        "!app",
        "old",
        "app=db",
        "app!=web",
        "old=",
        "old in (x)",
        "app notin (web,db)",
        "size>12",
        "size<12",
        "app>1",
        "old<5",
        "app=web,old",
    ],
)
def test_selector_leaves_out_what_kubectl_leaves_out(text):
    """A missing label meets only `!key`, `!=` and `notin`; a comparison needs a number."""
    assert not LabelSelector.parse(text).matches(LABELS)


@pytest.mark.parametrize(
    "text",
    [
        "a,",
        ",a",
        "a,,b",
        "a==b==c",
        "!a=b",
        "a b",
        "a in b",
        "a>b",
        "a>1>2",
        "-a=b",
        "a=b c",
        "a=-b",
        "UPPER.com/x=1",
        "a/b/c=1",
        "/x",
        "x" * 64,
        "a=" + "x" * 64,
        "p" * 254 + "/x",
        "a||b",
    ],
)
def test_what_kubectl_refuses_is_refused(text):
    """A mistyped selector is an error, never a selector that selects something else."""
    with pytest.raises(ValueError, match=r"\w"):
        LabelSelector.parse(text)


def test_selectors_that_mean_the_same_are_equal():
    """Two manifests that write one selector differently share one watch."""
    one = LabelSelector.parse("b in (y, x), a==1")
    assert (
        one
        == LabelSelector.parse("a=1,b in (x,y,x)")
        == LabelSelector.from_mapping(
            {
                "matchLabels": {"a": "1"},
                "matchExpressions": [{"key": "b", "operator": "In", "values": ["x", "y"]}],
            }
        )
    )
    assert str(one) == "a=1,b in (x,y)"


@pytest.mark.parametrize(
    ("operator", "values", "text"),
    [
        ("Exists", [], "a"),
        ("DoesNotExist", [], "!a"),
        ("In", ["x"], "a=x"),
        ("NotIn", ["x"], "a!=x"),
        ("NotIn", ["x", "y"], "a notin (x,y)"),
    ],
)
def test_expressions_are_sent_in_kubectl_form(operator, values, text):
    """What metav1 writes as an expression reaches the server as its query string."""
    expression = {"key": "a", "operator": operator, "values": values}
    assert str(LabelSelector.from_mapping({"matchExpressions": [expression]})) == text


@pytest.mark.parametrize(
    "mapping",
    [
        {"labels": {}},
        {"matchLabels": ["a"]},
        {"matchLabels": {"a": 1}},
        {"matchLabels": {1: "a"}},
        {"matchExpressions": "a"},
        {"matchExpressions": ["a"]},
        {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]},
        {"matchExpressions": [{"key": "a", "operator": "In"}]},
        {"matchExpressions": [{"key": "a", "operator": "In", "values": "xy"}]},
        {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]},
        {"matchExpressions": [{"operator": "Exists"}]},
    ],
)
def test_malformed_mapping_is_refused_with_a_sentence(mapping):
    """Whatever stands under `labelSelector` in a manifest gets an answer and not a traceback."""
    with pytest.raises(ValueError, match=r"\w"):
        LabelSelector.from_mapping(mapping)


NAMES = st.from_regex(r"[a-z]([a-z0-9.-]{0,8}[a-z0-9])?", fullmatch=True)
REQUIREMENTS = st.one_of(
    st.builds(Requirement, NAMES, st.sampled_from(["Exists", "DoesNotExist"])),
    st.builds(
        lambda key, operator, values: Requirement(key, operator, tuple(sorted(values))),
        NAMES.filter(lambda name: name not in ("in", "notin")),
        st.sampled_from(["In", "NotIn"]),
        st.sets(NAMES | st.just(""), min_size=1, max_size=3),
    ),
    st.builds(
        lambda key, operator, n: Requirement(key, operator, (str(n),)),
        NAMES,
        st.sampled_from(["Gt", "Lt"]),
        st.integers(-99, 99),
    ),
)


@given(st.lists(REQUIREMENTS, max_size=4))
def test_printed_selector_is_read_back_as_itself(requirements):
    """`declctl plan` prints selectors that can be pasted into a manifest."""
    text = ",".join(str(requirement) for requirement in requirements)
    selector = LabelSelector.parse(text)
    assert set(selector.requirements) == set(requirements)
    assert LabelSelector.parse(str(selector)) == selector


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("status.phase=Running", True),
        ("status.phase==Running", True),
        ("status.phase!=Running", False),
        ("spec.nodeName=", True),
        ("spec.nodeName!=", False),
        ("spec.hostNetwork=true", True),
        ("metadata.name=a,status.phase=Pending", False),
        ("", True),
    ],
)
def test_field_selector_compares_strings_and_takes_missing_for_empty(text, selected):
    """`spec.nodeName=` selects pods without a node, as it does with kubectl."""
    obj = {"metadata": {"name": "a"}, "status": {"phase": "Running"}, "spec": {"hostNetwork": True}}
    assert FieldSelector.parse(text).matches(obj) is selected


@pytest.mark.parametrize("text", ["a", "a in (b)", "a=b=c", "=b", "a..b=c", "a=b,"])
def test_malformed_field_selector_is_refused(text):
    with pytest.raises(ValueError, match=r"\w"):
        FieldSelector.parse(text)


def test_field_selectors_that_mean_the_same_are_equal():
    assert str(FieldSelector.parse("b!=1,a==2")) == "a=2,b!=1" == str(FieldSelector.parse("a=2,b!=1,a=2"))
