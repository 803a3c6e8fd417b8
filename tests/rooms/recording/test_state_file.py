"""The folder of a state: what is whole is read, whatever has happened to the rest."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declctl.errors import StateUnusable
from declctl.recording.state_entries import (
    KeptCache,
    KeptChange,
    KeptChanges,
    KeptHandler,
    KeptKey,
    KeptList,
    KeptMark,
    KeptObject,
    StateEntry,
    StateHeader,
)
from declctl.recording.state_file import StateFolder

HEADER = StateHeader("keeper", "1.0", "2026-01-01T00:00:00Z")
CACHES = {1: "pods", 2: "maps"}
KEYS = st.sampled_from(["a/a", "a/b", "c"])


def _object(key: str, version: int) -> KeptObject:
    return KeptObject(key, f"uid\n{version}", b'{"app":"a"}', ("x", None, ("y", "z")), b"frame %d" % version)


CHANGES = st.lists(st.tuples(KEYS, st.booleans()), max_size=3)
STEPS = st.lists(
    st.tuples(st.sampled_from([*CACHES]), st.sampled_from(["list", "part", "changes", "bookmark"]), CHANGES),
    max_size=8,
)


def _written(steps) -> list[tuple[list[StateEntry], dict[str, tuple[str, dict]]]]:
    """The entries of each step, and what a reader knows after it: by cache, the version and the objects."""
    found, model, partly = [], dict[int, tuple[str, dict]](), dict[int, dict]()
    for number, (cache, kind, changes) in enumerate(steps, 1):
        version = str(number)
        if kind in ("list", "part"):
            objects = {key: _object(key, number) for key, _ in changes}
            entry = KeptList(cache, version, [*objects.values()], more=kind == "part")
            partly[cache] = {**partly.get(cache, {}), **objects}
            model.pop(cache, None)
            if kind == "list":
                model[cache] = version, partly.pop(cache)
        else:
            objects = [KeptObject(key, "") if gone else _object(key, number) for key, gone in changes]
            objects = [] if kind == "bookmark" else objects
            entry = KeptChanges(cache, version, objects)
            if cache not in model:  # no process changes a list that it has not ended
                continue
            held = dict(model[cache][1])
            for each in objects:
                held[each.key] = each
            model[cache] = version, {key: each for key, each in held.items() if each.frame}
        found.append(([entry], {CACHES[each]: known for each, known in model.items()}))
    return found


MARKS = st.lists(
    st.tuples(st.booleans(), st.sampled_from("ab"), st.sampled_from("klm"), st.booleans(), st.booleans())
)


def _marks(drawn) -> list[tuple[KeptMark, dict[str, tuple[bool, set[str]]]]]:
    """Marks, each with the handlers that a reader knows then: whether by all keys, and with which."""
    found, known = [], dict[str, tuple[bool, set[str]]]()
    for is_done, handler, key, whole, is_known in drawn:
        entry = KeptHandler(
            handler, "Pod", [1], is_known, whole, [KeptKey(key, None if is_done else KeptChange())]
        )
        knew, before = known.get(handler, (False, set()))
        before = set() if whole else before
        after = before - {key} if is_done else before | {key}
        # No other handler is there any more. One that was not known becomes it by all its keys.
        known = {handler: (is_known and (whole or knew), after)}
        found.append((KeptMark("digest", [entry]), known))
    return found


@given(steps=STEPS, marks=MARKS, cut=st.floats(0, 1))
@settings(max_examples=150)
def test_a_file_is_read_to_its_last_whole_mark(steps, marks, cut: float, tmp_path_factory) -> None:
    """Wherever the process was killed: caches and handlers are those of one mark, and none of a mixture."""
    path = tmp_path_factory.mktemp("state")
    written = _written(steps)
    folder = StateFolder(path)
    file = folder.begin()
    file.append([HEADER, *(KeptCache(number, name, name, ["spec.x"]) for number, name in CACHES.items())])
    ends, begun = [], file.bytes
    # Where there are fewer marks than steps, some changes come before one mark.
    every = max(1, -(-len(written) // max(1, len(marked := _marks(marks)))))
    for number, (entries, known) in enumerate(written, 1):
        file.append(entries)
        if number % every == 0 and marked:
            mark, pending = marked.pop(0)
            file.append([mark])
            ends.append((file.bytes, known, pending))
    file.publish()
    file.close()
    length = int(cut * file.bytes)
    os.truncate(path / "caches", length)
    if length < begun:
        with pytest.raises(StateUnusable):
            folder.read()
    else:
        read = folder.read()
        expected = [(known, pending) for end, known, pending in ends if end <= length]
        assert read is not None
        assert read.header == HEADER
        found = {name: (each.version, each.objects) for name, each in read.caches.items()}
        handlers = {name: (each.is_known, set(each.keys)) for name, each in read.handlers.items()}
        assert (found, handlers) == (expected[-1] if expected else ({}, {}))
    folder.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is no state of declctl"),
        (b"hello\n", "is no state of declctl"),
        (b"declctl-recording 1\n", "is no state of declctl"),
        (b"declctl-state 2\n", "has the format 2, and this declctl reads 1"),
        (b"declctl-state 1\n", "is torn before its first entry"),
        (b"declctl-state 1\n\x00\x00\x00\x01\x00\x00\x00\x00x", "is torn before its first entry"),
    ],
)
def test_what_is_no_state_is_a_sentence(text: bytes, words: str, tmp_path: Path) -> None:
    """And no state is None."""
    folder = StateFolder(tmp_path)
    assert folder.read() is None
    (tmp_path / "caches").write_bytes(text)
    with pytest.raises(StateUnusable, match=words):
        folder.read()
    folder.close()


def test_a_folder_belongs_to_one_process(tmp_path: Path) -> None:
    """Until it is closed; a file where the folder should be is a sentence, too."""
    first = StateFolder(tmp_path / "a" / "b")
    with pytest.raises(StateUnusable, match="another process has the folder"):
        StateFolder(tmp_path / "a" / "b")
    first.close()
    StateFolder(tmp_path / "a" / "b").close()
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(StateUnusable, match=r"file can't be used: (File exists|Not a directory)"):
        StateFolder(tmp_path / "file")
