"""The life of foreign code: prepared before it is used, torn down once, when the last that uses it goes.

Handler files belong to one generation, and to those that it comes back as. An installed plugin is one
object for every generation that has it with the same version and config.
"""

from collections.abc import Sequence

from declctl.errors import ReloadRefused
from declctl.hooks.calling import Implementation
from declctl.hooks.faults import told_with_place
from declctl.runtime.handling.context import Memo
from declctl.runtime.reloading.generation import Generation, RuntimeServices, lifecycle_context
from declctl.runtime.reloading.lifecycle import Lifecycle
from declctl.runtime.reloading.outcome import Outcome


class PluginLifetimes:
    """The generations that are staged or committed and have not been torn down, the oldest first.

    Used on the machinery loop; it calls their life-cycle hooks.
    """

    def __init__(self, around: RuntimeServices, lifecycle: Lifecycle) -> None:
        self._around = around
        self._lifecycle = lifecycle
        self._owners: list[Generation] = []
        self._memos: dict[str, Memo] = {}  # by plugin or entry point

    def all(self) -> Sequence[Generation]:
        """Every one of them."""
        return tuple(self._owners)

    def memo(self, name: str) -> Memo:
        """What a plugin or an entry point remembers in its life-cycle hooks."""
        return self._memos.setdefault(name, Memo())

    def enter(self, generation: Generation) -> None:
        """It is being staged: what it uses is not torn down from now on."""
        self._owners.append(generation)

    async def leave(self, generation: Generation, *, timeout: float) -> bool:
        """It goes: tear down what nobody else uses, `timeout` seconds for each hook.

        Returns whether it was the last that used its code.
        """
        self._owners.remove(generation)
        if self._is_loaded(generation):
            return False
        kept = self._plugins_elsewhere(generation)
        await self._lifecycle.call_each(
            [i for i in generation.foreign.lifecycle("declctl_teardown") if i.plugin not in kept],
            lambda i: self._arguments(i, generation),
            loop=generation.loop,
            timeout=timeout,
        )
        return True

    async def prepare(self, generation: Generation, *, after: Generation | None) -> None:
        """Call what a generation wants called before it is committed; raises ReloadRefused.

        The first of all starts up. Code that is loaded already is prepared, and has its state.
        """
        if after is None:
            await self._call_all(generation, "declctl_startup", "StartupFailed")
        await self._call_all(
            generation, "declctl_prepare", "PrepareFailed", but=self._prepared(generation, after)
        )
        if after is not None and not self._is_loaded(generation):
            await self._hand_over_state(after, generation)

    async def tell(self, generation: Generation, outcome: Outcome, *, timeout: float) -> None:
        """Call `declctl_reload` with the outcome of an attempt."""
        implementations = generation.foreign.lifecycle("declctl_reload")
        await self._lifecycle.call_each(
            implementations, lambda _: {"outcome": outcome}, loop=generation.loop, timeout=timeout
        )

    async def _call_all(
        self, generation: Generation, hook: str, reason: str, *, but: frozenset[str] = frozenset()
    ) -> None:
        failed = await self._lifecycle.call_each(
            [i for i in generation.foreign.lifecycle(hook) if i.plugin not in but],
            lambda i: self._arguments(i, generation),
            loop=generation.loop,
            timeout=generation.plan.reload.warm_timeout,
        )
        if failed:
            raise ReloadRefused(reason, "; ".join(str(failure) for failure in failed))

    async def _hand_over_state(self, old: Generation, new: Generation) -> None:
        exporters = {i.plugin: i for i in old.foreign.lifecycle("declctl_export_state")}
        timeout, kept = new.plan.reload.warm_timeout, new.foreign.same_plugins(old.foreign)
        for importer in new.foreign.lifecycle("declctl_import_state"):
            exporter = exporters.get(importer.plugin)
            if exporter is None or importer.plugin in kept:
                continue
            try:
                state = await self._lifecycle.call(exporter, {}, loop=old.loop, timeout=timeout)
                arguments = {"state": state, "from_generation": old.number}
                await self._lifecycle.call(importer, arguments, loop=new.loop, timeout=timeout)
            except Exception as error:
                why = str(error) if error.__cause__ is None else told_with_place(error.__cause__)
                message = f"the state of {importer.plugin} was not handed over: {why}"
                raise ReloadRefused("StateNotImported", message) from error

    def _prepared(self, generation: Generation, after: Generation | None) -> frozenset[str]:
        """Who is prepared already as this generation wants it.

        A plugin that was last prepared with another config is not, whoever had it with this one before.
        """
        other = generation.foreign.reconfigured(after.foreign) if after is not None else frozenset[str]()
        if self._is_loaded(generation):
            everybody = {i.plugin for i in generation.foreign.lifecycle("declctl_prepare")}
            return frozenset(everybody - other)
        return self._plugins_elsewhere(generation) - other

    def _is_loaded(self, generation: Generation) -> bool:
        """Whether another one has the very same code."""
        return any(other.foreign is generation.foreign for other in self._others(generation))

    def _plugins_elsewhere(self, generation: Generation) -> frozenset[str]:
        """The installed plugins that another one uses as this one does."""
        return frozenset[str]().union(
            *(generation.foreign.same_plugins(other.foreign) for other in self._others(generation))
        )

    def _others(self, generation: Generation) -> Sequence[Generation]:
        return [other for other in self._owners if other is not generation]

    def _arguments(self, implementation: Implementation, generation: Generation) -> dict[str, object]:
        name = implementation.plugin
        return {"ctx": lifecycle_context(name, generation, self.memo(name), self._around)}
