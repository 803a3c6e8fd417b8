"""Every name that a room exports is there."""

from importlib import import_module

import pytest


@pytest.mark.parametrize("room", ["informer", "objects", "decoding", "kit", "workqueue"])
def test_every_exported_name_of_a_room_is_there(room: str):
    """What a room promises can be had, whenever it is loaded."""
    module = import_module(f"declctl.{room}")
    for name in module.__all__:
        assert getattr(module, name) is not None
