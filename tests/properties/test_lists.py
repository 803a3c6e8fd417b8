"""Lists that are cut while they come, against the same lists decoded whole."""

import json

from hypothesis import event, given
from hypothesis import strategies as st

from declctl.decoding import ItemCutter, Projection
from declctl.errors import MalformedAnswer
from declctl.objects import FieldPath

NODE_NAME = FieldPath.parse("spec.nodeName")
TEXTS = st.text(max_size=20) | st.sampled_from(
    ['},{"metadata":{', "}]}", '"items":[', '\\"},{\\', "é😀", "\u2028"]
)
# What an item may hold that looks like the begin of the next one.
INNER = [{"metadata": {"name": "inner"}, "spec": {}}, {"metadata": {"name": "other"}}]
KINDS = [{}, {"apiVersion": "v1", "kind": "Pod"}, {"kind": "Pod", "apiVersion": "v1"}]
DEEP = b'{"metadata":{"name":"deep"},"spec":' + b'{"a":' * 2000 + b"1" + b"}" * 2000 + b"}"
ODD = [
    b'{"metadata":{"name":"no-number"},"spec":01}',
    b'{"metadata":{"name":"no-word"},"spec":tru}',
    b'{"metadata":{"name":"no-utf8"},"spec":{"nodeName":"\xff"}}',
    b'{"metadata":{"name":"control"},"spec":{"nodeName":"\x01"}}',
    b'{"metadata":{"name":"comma"},}',
    b'{"metadata":{"name":"number"},"spec":{"nodeName":5}}',
    b'{"metadata":{"name":"shape"},"spec":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}',
    b'{"metadata":{"name":7}}',
    b'{"metadata":{}}',
    b'{"metadata":null}',
    b"{}",
    b"null",
    b"[]",
    b'"},{"',
    b'{"kind":"Node","apiVersion":"v1","metadata":{"name":"foreign"}}',
    b'{"metadata":{"name":"spaced"}} ',
    b'\n{"metadata":{"name":"spaced"}}',
    b'{"metadata":{"name":"garbage"}} x',
    b'{"metadata":{"name":"twice"}}{"metadata":{"name":"twice"}}',
    DEEP,
]
ENDLESS = [b'{"metadata":{"name":"open"}', b'{"metadata":{"name":"closed"}}}', b'{"metadata":{"name":"text}}']


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@st.composite
def objects(draw, kind):
    """One that can be used, with anything in it."""
    metadata = {
        "name": draw(st.sampled_from(["a", "b", "c"])),
        "resourceVersion": str(draw(st.integers(1, 9))),
    }
    spec = {"nodeName": draw(st.none() | TEXTS), "text": "x" * draw(st.sampled_from([0, 300, 2000]))}
    inner = {"templates": draw(st.sampled_from([[], INNER, [{**kind, **each} for each in INNER]]))}
    return compact(
        {**kind, "metadata": {**metadata, "annotations": {"a": draw(TEXTS)}}, "spec": spec, **inner}
    )


@st.composite
def lists(draw):
    """The body of an answer: mostly as API servers write it."""
    kind = draw(st.sampled_from(KINDS))
    # What has no end takes everything after it along, so it is rare.
    odd = st.sampled_from(ODD if draw(st.integers(0, 9)) else [*ODD, *ENDLESS])
    usual = draw(st.integers(0, 2)) > 0
    items = draw(st.lists(objects(kind) if usual else objects(kind) | odd, max_size=8))
    metadata = compact({"resourceVersion": "70", "continue": draw(st.sampled_from(["", "next"]))})
    named = draw(st.sampled_from(["PodList", "PodList", "PodList", "Table", ""]))
    fields = {"kind": compact(named), "metadata": metadata, "items": b"[" + b",".join(items) + b"]"}
    for name in draw(
        st.sets(st.sampled_from(["kind", "metadata", "items"]), max_size=draw(st.sampled_from([0, 0, 1])))
    ):
        del fields[name]
    space = draw(st.sampled_from([b"", b"", b"", b" "]))
    written = [
        b'"%b":%b%b' % (name.encode(), space, fields[name]) for name in draw(st.permutations(sorted(fields)))
    ]
    body = b"{" + b",".join(written) + b"}" + draw(st.sampled_from([b"", b"\n"]))
    return body[: draw(st.integers(0, len(body)))] if draw(st.integers(0, 19)) == 0 else body


def told(answer):
    """What a caller sees of a page, or of the fault."""
    try:
        page = answer()
    except MalformedAnswer as fault:
        said = str(fault)
        return said if said.startswith("no object") else "no list"
    records = []
    for record in page.records:
        try:
            content = record.decode()
        except MalformedAnswer as fault:
            content = str(fault)
        records.append(
            (
                record.key,
                record.resource_version,
                record.field(NODE_NAME) if isinstance(content, dict) else None,
                repr(content),
            )
        )
    return records, page.resource_version, page.continue_token, page.skipped, page.kept_raw


def projection():
    return Projection(api_version="v1", kind="Pod", paths=[NODE_NAME])


@given(body=lists(), cuts=st.lists(st.integers(1, 3000), max_size=12))
def test_a_list_that_is_cut_is_the_list(body, cuts):
    """Items taken out while the body comes, in whatever parts, are those of the body decoded whole."""
    whole = projection()
    cutter = ItemCutter(projection().items())
    at = 0
    for size in [*cuts, len(body)]:
        if part := body[at : at + size]:
            cutter.feed(memoryview(part))
            cutter.cut()
        at += size
    event("cut while it came" if cutter.held < len(body) else "held to its end")
    assert told(cutter.page) == told(lambda: whole.page(body))
