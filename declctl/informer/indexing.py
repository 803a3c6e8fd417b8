"""What may be given as an index: a function of an object, or of a record."""

from collections.abc import Callable, Iterable, Mapping
from typing import cast

from declctl.informer.stores import FieldIndex, FunctionIndex, IndexFunc, function_index
from declctl.informer.stores.indices import refuse_no_index
from declctl.objects import ObjectView

AnyIndexFunc = IndexFunc | Callable[[ObjectView], Iterable[str]]


def index_functions(indexers: Mapping[str, AnyIndexFunc]) -> dict[str, IndexFunc]:
    """Plain functions take an object; field and function indexes take a record already.

    Raises TypeError, which names the index, for what is no function, and for an asynchronous one.
    """
    for name, function in indexers.items():
        refuse_no_index(name, function)
    return {
        name: function
        if isinstance(function, FieldIndex | FunctionIndex)
        else function_index(cast("Callable[[ObjectView], Iterable[str]]", function))
        for name, function in indexers.items()
    }
