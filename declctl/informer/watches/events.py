"""What a watch tells a program (client-go's watch.Event)."""

from typing import NamedTuple

from declctl.objects import EventType, ObjectView


class ObjectEvent(NamedTuple):
    """One event.

    `type` is ADDED, MODIFIED or DELETED; DROPPED only where the source has a transform that dropped
    the object. Of what is DELETED `obj` is the last state that is known.
    """

    type: EventType
    obj: ObjectView
