"""What a function has said of objects, kept by what stands where it looks: many objects are alike there.

There are a hundred thousand pods on a thousand nodes. A function that looks at the node of each, and at
nothing else, is asked a thousand times.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from declctl.decoding.selective import SelectiveReader
from declctl.objects.record import ObjectView, Record

Answer = TypeVar("Answer")

_MOST = 10_000  # answers that are kept
_FEW = 500  # answers after which it is looked whether keeping them is worth anything


class Recall(Generic[Answer]):
    """Answers to a `question` about many objects, one after the other, which `reader` reads.

    `question` says the same of all objects that have the same where it looks. What it looked at is known
    of each answer that is kept: where it has looked at anything else of an object, none is.
    """

    def __init__(self, reader: SelectiveReader, question: Callable[[ObjectView], Answer]) -> None:
        self._reader = reader
        self._question = question
        self._known: dict[Any, Answer] = {}
        self._asked = self._answered = 0
        self._is_worth_it = True

    def answer(self, record: Record, plain: Any) -> Answer:
        """The answer about an object; `plain` is its JSON, as a buffer, None if that is not at hand.

        Raises what the question raises, each time.
        """
        signature = self._reader.signature(plain) if plain is not None and self._is_worth_it else None
        if signature is None:
            return self._reader.ask(self._question, record, plain)
        self._answered += 1
        known = self._known.get(signature)
        if known is not None:
            return known
        self._asked += 1
        answer, is_of_signature = self._reader.ask_watched(self._question, record, plain)
        if is_of_signature and len(self._known) < _MOST:
            self._known[signature] = answer
        if self._asked % _FEW == 0 and self._asked * 2 > self._answered:
            self._is_worth_it = False
            self._known.clear()
        return answer
