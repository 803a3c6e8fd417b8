"""Lint rules for the bodies of hooks: `ctx.apply` and its like, and `request.previous`.

An `async def` hook awaits `ctx.apply(…)`; a `def` hook calls `ctx.sync.apply(…)`. The rules report only what
is wrong whenever the line runs. They begin at the hooks of a module, where `ctx` is known by its name, and
follow it into the functions and methods of the same module to which a hook passes it. A function with a
decorator other than `hookimpl` is left out, and so is one that binds `ctx` again: it may be something else
there.

`request.previous` is None in each call of a reconciler without `keepPrevious`.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

from declctl.codes import NO_PREVIOUS, NOT_AWAITED, WRONG_FORM

_CONTEXT: Final = "ctx"
_REQUEST: Final = "request"
_AWAITED: Final = frozenset({"apply", "apply_set", "delete", "get", "patch_status"})
_MARK: Final = "hookimpl"
_Function = ast.FunctionDef | ast.AsyncFunctionDef
# In these, a line of a helper may run for one of its callers only.
_BRANCHES: Final = (ast.If, ast.IfExp, ast.Try, ast.TryStar, ast.Match, ast.BoolOp, ast.While)
_ENDS: Final = (ast.Return, ast.Raise, ast.Break, ast.Continue)  # the lines below may not run

WriteRule = tuple[ast.expr, str, str, str]
"""The place, the code, what is wrong, and what to do instead."""


class _Place(Enum):
    """Where a function runs."""

    LOOP = "loop"
    THREAD = "thread"
    UNKNOWN = "unknown"  # a nested `def` or lambda, which may be passed anywhere


class _Holder(NamedTuple):
    """A function that has `ctx`, or another argument of hooks, in a parameter."""

    function: _Function
    parameter: str  # the name that the argument has in it
    place: _Place
    owner: ast.ClassDef | None  # the class of a method
    is_hook: bool


def write_rules(tree: ast.Module, attributes: Iterable[str]) -> Iterator[WriteRule]:
    """The faults of one module. `attributes` are those of its entry points; empty for the module itself.

    Without an entry point in the module, nothing is known of its functions, and nothing is reported.
    """
    names = set(attributes)
    if not names:
        return
    module = _Module(tree)
    waiting = list(module.hooks(names, _CONTEXT))
    places: dict[tuple[int, str], set[_Place]] = {}  # of each function that has `ctx`, by its parameter
    holders: list[_Holder] = []
    while waiting:
        holder = waiting.pop()
        known = places.setdefault((id(holder.function), holder.parameter), set())
        if holder.place not in known:
            known.add(holder.place)
            holders.append(holder)
            waiting += module.receivers(holder)
    reported: set[tuple[int, str]] = set()  # a function may have several holders
    for holder in holders:
        is_alone = len(places[id(holder.function), holder.parameter]) == 1
        for node, code, what, advice in _Body(holder, in_one_place=is_alone).faults():
            if (id(node), code) not in reported:
                reported.add((id(node), code))
                yield node, code, what, advice


def previous_rules(tree: ast.Module, reconcilers: Mapping[str, bool]) -> Iterator[WriteRule]:
    """The reads of `request.previous` in one module where it is always None.

    `reconcilers` has the attributes of its entry points that are reconcilers (empty for the module itself),
    and whether a handler of each has `keepPrevious`.
    """
    names = {name for name, keeps in reconcilers.items() if not keeps}
    for holder in _Module(tree).hooks(names, _REQUEST) if names else ():
        # A marked function may belong to any entry point of the module.
        if holder.owner is None and _is_marked(holder.function) and any(reconcilers.values()):
            continue
        for node, _ in _Body(holder, in_one_place=False).nodes():
            if not (isinstance(node, ast.Attribute) and node.attr == "previous"):
                continue
            if isinstance(node.value, ast.Name) and node.value.id == _REQUEST:
                what = "request.previous is always None: no handler with this code has keepPrevious"
                yield node, NO_PREVIOUS, what, "write keepPrevious: true for the handler in the manifest"


class _Module:
    """The functions and classes of a module, by name."""

    def __init__(self, tree: ast.Module) -> None:
        self._functions, self._classes = _functions_of(tree.body), dict[str, ast.ClassDef]()
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                self._classes[node.name] = node

    def hooks(self, names: set[str], argument: str) -> Iterator[_Holder]:
        """The functions that declctl calls with an argument: of entry points, and those with the mark."""
        for name, function in self._functions.items():
            if _is_marked(function) or (name in names and not function.decorator_list):
                yield from _hook(function, None, argument)
        for name, owner in self._classes.items():
            if name in names:
                for method in _functions_of(owner.body).values():
                    if _is_marked(method):
                        yield from _hook(method, owner, argument)

    def receivers(self, holder: _Holder) -> Iterator[_Holder]:
        """The functions of the module to which a function passes its `ctx`."""
        body = _Body(holder, in_one_place=True)
        for node, place in body.nodes():
            if not isinstance(node, ast.Call):
                continue
            function, owner, skipped = self._called(node.func, holder)
            if function is None or function.decorator_list:
                continue
            # A helper may choose between two others by the place where it runs.
            where = place if body.is_certain(node) else _Place.UNKNOWN
            if isinstance(function, ast.AsyncFunctionDef):
                where = _Place.LOOP
            for parameter in _receiving(node, function, holder.parameter, skipped):
                if not _binds(function, parameter):
                    yield _Holder(function, parameter, where, owner, is_hook=False)

    def _called(self, called: ast.expr, holder: _Holder) -> tuple[_Function | None, ast.ClassDef | None, int]:
        """The function of this module that is called, its class, and how many parameters a call binds."""
        if isinstance(called, ast.Name) and called.id not in _stored(holder.function):
            return self._functions.get(called.id), None, 0
        own = [*holder.function.args.posonlyargs, *holder.function.args.args]
        is_method = (
            holder.owner is not None
            and own
            and isinstance(called, ast.Attribute)
            and isinstance(called.value, ast.Name)
            and called.value.id == own[0].arg
        )
        if is_method and holder.owner is not None and isinstance(called, ast.Attribute):
            return _functions_of(holder.owner.body).get(called.attr), holder.owner, 1
        return None, None, 0


class _Body:
    """The nodes of a function in which its parameter is the argument, each with the place where it runs."""

    def __init__(self, holder: _Holder, *, in_one_place: bool) -> None:
        self._holder = holder
        self._in_one_place = in_one_place  # all callers that are known run it in the same place
        self._unconditional: set[int] = set()  # the nodes that run in each call, by their ids

    def is_certain(self, node: ast.AST) -> bool:
        """Whether a node that `nodes` has given runs for each caller; in a hook, all callers are alike."""
        return self._holder.is_hook or id(node) in self._unconditional

    def nodes(self) -> Iterator[tuple[ast.AST, _Place]]:
        """All nodes of the body, with those of nested functions that have the same argument."""
        # Without recursion: an expression may be deeper than the stack of Python.
        body = reversed(self._holder.function.body)
        waiting: list[tuple[ast.AST, _Place, bool]] = [(each, self._holder.place, True) for each in body]
        may_be_over = False  # a branch above is for some callers, and ends the function for them
        while waiting:
            node, place, is_certain = waiting.pop()
            is_certain = is_certain and not may_be_over
            if isinstance(node, _Function | ast.Lambda):
                if self._holder.parameter in _parameters(node):
                    continue
                place = _Place.LOOP if isinstance(node, ast.AsyncFunctionDef) else _Place.UNKNOWN
            elif isinstance(node, ast.ClassDef):
                continue
            if is_certain:
                self._unconditional.add(id(node))
            yield node, place
            if is_certain and isinstance(node, _BRANCHES):
                is_certain = False
                may_be_over = self._ends_with_ctx(node)
            children = [(child, place, is_certain) for child in ast.iter_child_nodes(node)]
            waiting += reversed(children)

    def faults(self) -> Iterator[WriteRule]:
        """What is wrong in the function."""
        loaded = _loaded(self._holder.function)
        is_async = isinstance(self._holder.function, ast.AsyncFunctionDef)
        where = "" if is_async else ", in an `async def` that the hook awaits"
        for node, place in self.nodes():
            if isinstance(node, ast.Call):
                yield from self._wrong_form(node, place)
            elif isinstance(node, ast.Await) and self._method(node.value) == "record_event":
                yield (
                    node,
                    WRONG_FORM,
                    "ctx.record_event returns None, which can't be awaited: the call raises TypeError",
                    "remove `await`: it returns at once, and the event is posted in the background",
                )
            dropped = _dropped_value(node, loaded)
            name = "" if dropped is None or place is not _Place.LOOP else self._method(dropped)
            if dropped is not None and name in _AWAITED:
                what = f"ctx.{name}(…) is not awaited: the handler succeeds even if it fails"
                yield dropped, NOT_AWAITED, what, f"write `await ctx.{name}(…)`{where}"

    def _wrong_form(self, call: ast.Call, place: _Place) -> Iterator[WriteRule]:
        """A call that raises RuntimeError at the place where it runs."""
        # A helper may have a branch for each of its callers.
        if not self.is_certain(call) or not (self._holder.is_hook or self._in_one_place):
            return
        name = self._method(call)
        if place is _Place.THREAD and name in _AWAITED:
            yield (
                call,
                WRONG_FORM,
                f"ctx.{name} is for `async def`, and this runs in a `def` hook: it raises RuntimeError",
                f"write ctx.sync.{name}(…), which waits for the server, or make the hook `async def`",
            )
        elif place is _Place.LOOP and name in {f"sync.{each}" for each in _AWAITED}:
            yield (
                call,
                WRONG_FORM,
                f"ctx.{name} would block the loop of all `async def` hooks: it raises RuntimeError",
                f"write `await ctx.{name.removeprefix('sync.')}(…)`",
            )

    def _ends_with_ctx(self, branch: ast.AST) -> bool:
        """Whether a branch uses `ctx`, and may end the function: the lines below are for other callers."""
        inner = list(ast.walk(branch))
        return any(isinstance(each, _ENDS) for each in inner) and any(
            isinstance(each, ast.Name) and each.id == self._holder.parameter for each in inner
        )

    def _method(self, node: ast.expr) -> str:
        """`apply` for `ctx.apply(…)`, `sync.apply` for `ctx.sync.apply(…)`; empty for anything else."""
        steps: list[str] = []
        inner: ast.expr = node.func if isinstance(node, ast.Call) else ast.Constant(None)
        while isinstance(inner, ast.Attribute):
            steps.insert(0, inner.attr)
            inner = inner.value
        is_context = isinstance(inner, ast.Name) and inner.id == self._holder.parameter
        return ".".join(steps) if is_context else ""


def _dropped_value(node: ast.AST, loaded: frozenset[str]) -> ast.expr | None:
    """The value of a statement that nothing can use: alone, or assigned to a name that is never read."""
    match node:
        case ast.Expr(value=value):
            return value
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in loaded:
            return value
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name not in loaded:
            return value
        case _:
            return None


def _hook(function: _Function, owner: ast.ClassDef | None, argument: str) -> Iterator[_Holder]:
    if argument in _parameters(function) and not _binds(function, argument):
        place = _Place.LOOP if isinstance(function, ast.AsyncFunctionDef) else _Place.THREAD
        yield _Holder(function, argument, place, owner, is_hook=True)


def _functions_of(body: Iterable[ast.stmt]) -> dict[str, _Function]:
    """The functions of a module or a class. A name that is bound again, as by a wrapper, is left out."""
    found: dict[str, _Function] = {}
    again: set[str] = set()
    for node in body:
        if isinstance(node, _Function):
            again |= {node.name} & found.keys()
            found[node.name] = node
        else:
            again |= _bound_by(node)
    return {name: node for name, node in found.items() if name not in again}


def _is_marked(function: _Function) -> bool:
    """Whether `hookimpl` is the only decorator, with or without arguments."""
    if len(function.decorator_list) != 1:
        return False
    mark = function.decorator_list[0]
    mark = mark.func if isinstance(mark, ast.Call) else mark
    return _MARK in (getattr(mark, "id", ""), getattr(mark, "attr", ""))


def _receiving(call: ast.Call, function: _Function, context: str, skipped: int) -> Iterator[str]:
    """The parameters of a function that get `ctx` by a call; the first `skipped` ones are bound already."""
    parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args)][skipped:]
    for position, argument in enumerate(call.args):
        if isinstance(argument, ast.Starred):
            break  # the positions after it are not known
        if isinstance(argument, ast.Name) and argument.id == context and position < len(parameters):
            yield parameters[position]
    for keyword in call.keywords:
        is_context = isinstance(keyword.value, ast.Name) and keyword.value.id == context
        if is_context and keyword.arg is not None and keyword.arg in _parameters(function):
            yield keyword.arg


def _parameters(function: _Function | ast.Lambda) -> frozenset[str]:
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return frozenset(each.arg for each in (*named, given.vararg, given.kwarg) if each is not None)


def _stored(function: _Function | ast.Lambda) -> frozenset[str]:
    """The names that a function, or one nested in it, binds by anything but a parameter."""
    inner = function.body if isinstance(function, _Function) else [function.body]
    return frozenset[str]().union(*(_bound_by(node) for node in inner))


def _bound_by(node: ast.AST) -> frozenset[str]:
    """The names that a statement, or a part of it, binds, without parameters."""
    found = set[str]()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
            found.add(inner.id)
        elif isinstance(inner, _Function | ast.ClassDef):
            found.add(inner.name)
        elif isinstance(inner, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in inner.names}
        elif isinstance(inner, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and inner.name:
            found.add(inner.name)
        elif isinstance(inner, ast.Global | ast.Nonlocal):
            found |= set(inner.names)
    return frozenset(found)


def _binds(function: _Function | ast.Lambda, name: str) -> bool:
    """Whether a function binds a name again, so that it may be something else than its parameter."""
    return name in _stored(function)


def _loaded(function: _Function) -> frozenset[str]:
    """The names that a function, or one nested in it, reads or shares with others."""
    found = set[str]()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            found |= set(node.names)
    return frozenset(found)
