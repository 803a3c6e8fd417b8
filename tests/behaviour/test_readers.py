"""Readers of an index, while it is added, changed and removed, and objects come and go."""

import pytest

pytestmark = pytest.mark.thorough

_OBJECTS, _TURNS = 40, 12
_CODE = """
from blackboard import tell
VERSION = {version}

def it(obj): return [{value}]

def read(change, ctx):
    lister = ctx.listers["maps"]
    names = list(lister.index_names())
    if names != {names}:
        tell("wrong", VERSION, names)
        return
    found = {{}}
    for value in lister.index_values("it") if names else ():
        for obj in lister.by_index("it", value):
            found[obj.name] = value
            if [value] != it(obj):
                tell("wrong", VERSION, value, it(obj), obj.name)
    missing = [f"stays{{n}}" for n in range({objects}) if f"stays{{n}}" not in found] if names else []
    if missing:
        tell("wrong", VERSION, "missing", missing)
    tell("read", VERSION, len(found))
"""
_VALUES = ("'color:' + obj['data']['color']", "'size:' + obj['data']['size']", "")


def _write(rig, version: int) -> None:
    value = _VALUES[version % 3]
    index = ", indexers: [{name: it, entryPoint: 'handlers:it'}]" if value else ""
    rig.resources = [f"- {{name: maps, apiVersion: v1, kind: ConfigMap{index}}}"]
    names = ["it"] if value else []
    rig.write(_CODE.format(version=version, value=value, names=names, objects=_OBJECTS))


@pytest.mark.client_go("Field index")
@pytest.mark.guarantee("G12")
def test_no_reader_ever_sees_half_an_index_or_another_definition(rig, sandbox, config_map) -> None:
    """Handlers of both generations read while an index is built: each its own, and all of it (G12)."""
    rig.handler("read", rest="queue: {concurrency: 3}, retry: {maxAttempts: 1}")
    stay = [config_map(f"stays{n}", color=("red", "blue")[n % 2], size=str(n % 5)) for n in range(_OBJECTS)]
    _write(rig, 0)
    controller = rig.run(objects=stay)
    for version in range(1, _TURNS + 1):
        for number in range(8):
            name = f"moves{number}"
            data = {"color": f"c{(number + version) % 3}", "size": str(version)}
            if version > 1 and (version + number) % 4 == 1:
                sandbox.delete("ConfigMap", name, "default")
            else:
                sandbox.load([config_map(name, **data)])
        _write(rig, version)
        assert controller.reload().result == "Applied"
        sandbox.patch("ConfigMap", "stays0", {"metadata": {"labels": {"turn": str(version)}}})
        controller.wait_idle()
    assert (rig.told("wrong"), controller.handler("read").failed) == ([], 0)
    assert {row[1] for row in rig.told("read")} == set(range(_TURNS + 1))
    assert max(row[2] for row in rig.told("read")) > _OBJECTS
