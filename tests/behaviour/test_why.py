"""`declctl why` over generations: each field leads to the generation that gave it its value."""

from declctl.testing import until

CODE = """
async def tell(obj, ctx):
    if obj.name == "a":
        await ctx.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}, "data": DATA})
"""


def test_a_field_leads_to_the_generation_that_wrote_it(rig, config_map, sandbox) -> None:
    """An edit adds a field. The field that was there before still leads to the code that has written it."""
    rig.handler("tell", rest="replay: OnCodeChange")
    controller = rig.run(CODE + 'DATA = {"const": "1"}', objects=[config_map("a")])

    def applied(count: int) -> bool:
        return sum(total.count for total in controller.status().writes if total.verb == "apply") == count

    until("it is written", lambda: applied(1))
    rig.write(CODE + 'DATA = {"const": "1", "extra": "2"}')
    controller.reload()
    until("it is written again", lambda: applied(2))

    def generation(field: str) -> tuple[int, bool]:
        found = controller.on_machinery(controller.runtime.why("configmaps", "default/made", field), 10)
        (owned,) = found.fields
        return owned.write.generation, owned.exact

    assert generation("data.const") == (1, True)
    assert generation("data.extra") == (2, True)
