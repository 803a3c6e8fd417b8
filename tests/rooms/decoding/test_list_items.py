"""Lists that are read while they come; that the page is always the same is shown in tests/properties."""

import pytest

from declctl.decoding import ItemCutter, envelopes
from declctl.errors import MalformedAnswer
from tests.rooms.objects.made_objects import NODE_NAME, compact, pod, projection

TYPED = b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":['
BY_NAME = b'{"apiVersion":"v1","items":['
END_BY_NAME = b'],"kind":"PodList","metadata":{"continue":"","resourceVersion":"7"}}'


def item(name, **fields):
    return compact(
        {key: value for key, value in pod(name, **fields).items() if key not in ("apiVersion", "kind")}
    )


def cutter(**options):
    return ItemCutter(projection(NODE_NAME).items(**options))


def fed(parts, reading=None):
    """Give these parts, cutting after each; the reader, and how many bytes it held at most between two."""
    reading = reading or cutter()
    most = 0
    for part in parts:
        reading.feed(memoryview(part))
        reading.cut()
        most = max(most, reading.held)
    return reading, most


def parts_of(body, size=1000):
    return [body[at : at + size] for at in range(0, len(body), size)]


def names(page):
    return [record.object_key.name for record in page.records]


def unlike_the_first(name, **fields):
    """Nobody promises that all items begin with their name."""
    metadata = pod(name)["metadata"]
    return item(name, metadata=metadata if name == "pod-0" else dict(reversed(metadata.items())), **fields)


@pytest.mark.parametrize(
    ("begin", "write", "end", "bound"),
    [
        (TYPED, item, b"]}\n", {}),
        (TYPED, unlike_the_first, b"]}\n", {"longest": 5000}),
        (BY_NAME, lambda name, **fields: compact(pod(name, **fields)), END_BY_NAME, {}),
    ],
)
def test_no_more_is_held_than_what_is_being_read(begin, write, end, bound):
    """A list of a hundred thousand objects never stands in memory, neither a typed one nor a custom one."""
    body = begin + b",".join(write(f"pod-{number}", text="x" * 700) for number in range(300)) + end
    reading, most = fed(parts_of(body), ItemCutter(projection(NODE_NAME).items(), **bound))
    assert most < 5000
    page = reading.page()
    assert names(page) == [f"pod-{number}" for number in range(300)]
    assert page.resource_version == "7"
    assert page.records[5].field(NODE_NAME) == ("node-1",)


def test_an_item_that_holds_what_looks_like_items_is_one_item():
    """StatefulSets have templates that begin as the next item would."""
    templates = [{"metadata": {"name": f"template-{number}"}} for number in range(3)]
    items = [item(f"set-{number}", templates=templates, text="x" * 700) for number in range(50)]
    reading, most = fed(parts_of(TYPED + b",".join(items) + b"]}"))
    assert most < 5000
    page = reading.page()
    assert names(page) == [f"set-{number}" for number in range(50)]
    assert page.records[7].decode()["templates"] == templates
    assert not page.skipped


def test_a_broken_item_costs_itself():
    """What can't be stored is skipped and told, and the list goes on to be read as it comes."""
    broken = b'{"metadata":{"labels":{"app":"web"}},"spec":1e}'
    kept = b'{"metadata":{"name":"kept"},"spec":01}'
    items = [item(f"pod-{number}", text="x" * 700) for number in range(50)]
    items[10:10] = [broken, kept]
    reading, most = fed(parts_of(TYPED + b",".join(items) + b"]}"))
    assert most < 5000
    page = reading.page()
    assert len(page.records) == 51
    assert len(page.skipped) == len(page.kept_raw) == 1
    assert "kept" in page.kept_raw[0]


def test_what_is_spaced_in_another_way_is_read_at_its_end():
    """A proxy that prints lists prettily is slower, and right."""
    items = [item(f"pod-{number}", text="x" * 700) for number in range(10)]
    body = TYPED.replace(b'"items":', b'"items": ') + b",\n".join(items) + b"]}"
    reading, most = fed(parts_of(body))
    assert most == len(body)
    assert names(reading.page()) == [f"pod-{number}" for number in range(10)]


def test_a_riddle_is_not_solved_again_with_each_part(monkeypatch):
    """An item without an end is measured once, however many parts it comes in."""
    measured = []

    class Counting(envelopes.BracketScan):
        def end_of(self, raw, start):
            before = self.scanned
            found = super().end_of(raw, start)
            measured.append(self.scanned - before)
            return found

    monkeypatch.setattr(envelopes, "BracketScan", Counting)
    inner = b'{"metadata":{"name":"a"}}'
    endless = (
        TYPED
        + item("first", text="x" * 1000)
        + b',{"metadata":{"name":"b"},"all":['
        + b",".join([inner] * 8000)
    )
    reading, _ = fed(parts_of(endless))
    assert reading.held > 150_000
    assert sum(measured) <= len(endless)
    with pytest.raises(MalformedAnswer, match="is no list"):
        reading.page()
