"""The shape of the document of kind ControllerTest, which stands beside a Controller."""

from declctl.manifest.shape import words
from declctl.manifest.shape.controller import envelope
from declctl.manifest.shape.words import Schema


def controller_test() -> Schema:
    """A whole ControllerTest."""
    spec = words.record(
        "What is given, what happens, and what is expected.",
        {
            "controllerRef": words.reference("The Controller under test.", "a Controller in the same files"),
            "given": words.mapping(
                "Objects that are there before the first step, for each resource.",
                values=words.listing("Objects.", _object()),
            ),
            "steps": words.listing("What happens, in order.", _step()),
        },
        required=("controllerRef", "steps"),
    )
    return envelope("ControllerTest", "A test of a Controller that needs no cluster.", spec)


def _object() -> Schema:
    return words.mapping(
        "A whole object, or {file: PATH} for one in a file beside the manifest.",
        examples=[{"file": "testdata/running.yaml"}],
    )


def _step() -> Schema:
    target: dict[str, Schema] = {
        "resource": words.text("The name of a resource.", examples=["pods"]),
        "name": words.text("The name of the object."),
        "namespace": words.text("The namespace of the object.", default="default"),
    }
    patch = words.mapping("A merge patch.", examples=[{"status": {"phase": "Failed"}}])
    create = {"resource": target["resource"], "object": _object()}
    return words.record(
        "A change, and what follows from it.",
        {
            "create": words.record("A new object.", create, required=("resource", "object")),
            "modify": words.record(
                "A changed object.",
                {**target, "patch": patch},
                required=("resource", "name", "patch"),
            ),
            "delete": words.record("An object goes.", target, required=("resource", "name")),
            "expect": _expectation(),
        },
    )


def _expectation() -> Schema:
    handled = words.record(
        "A call of a handler.",
        {
            "handler": words.text("The name of the handler."),
            "event": words.choice("The type of change.", ["Added", "Modified", "Deleted", "Resync"]),
            "times": words.whole("How often.", minimum=0, default=1),
        },
        required=("handler",),
    )
    call = words.record(
        "A call of a plugin's method.",
        {
            "plugin": words.text("The name of the plugin."),
            "method": words.text("The name of the method."),
            "match": words.mapping("Arguments, with * for anything.", examples=[{"text": "*Failed*"}]),
        },
        required=("plugin", "method"),
    )
    return words.record(
        "What must have happened when everything rests.",
        {
            "handled": words.listing("Calls of handlers.", handled),
            "calls": words.listing("Calls of plugins.", call),
        },
    )
