"""The shape of the document of kind ControllerTest, which stands beside a Controller."""

from declctl.manifest.shape import handlers
from declctl.manifest.shape.controller import envelope
from declctl.manifest.shape.handlers import Schema


def controller_test() -> Schema:
    """A whole ControllerTest."""
    spec = handlers.record(
        "What is given, what happens, and what is expected.",
        {
            "controllerRef": handlers.reference(
                "The Controller under test.", "a Controller in the same files"
            ),
            "given": handlers.mapping(
                "Objects that are there before the first step, for each resource.",
                values=handlers.listing("Objects.", _object()),
            ),
            "steps": handlers.listing("What happens, in order.", _step()),
        },
        required=("controllerRef", "steps"),
    )
    return envelope("ControllerTest", "A test of a Controller that needs no cluster.", spec)


def _object() -> Schema:
    return handlers.mapping(
        "A whole object, or {file: PATH} for one in a file beside the manifest.",
        examples=[{"file": "testdata/running.yaml"}],
    )


def _step() -> Schema:
    target: dict[str, Schema] = {
        "resource": handlers.text("The name of a resource.", examples=["pods"]),
        "name": handlers.text("The name of the object."),
        "namespace": handlers.text("The namespace of the object.", default="default"),
    }
    patch = handlers.mapping("A merge patch.", examples=[{"status": {"phase": "Failed"}}])
    create = {"resource": target["resource"], "object": _object()}
    return handlers.record(
        "A change, and what follows from it.",
        {
            "create": handlers.record("A new object.", create, required=("resource", "object")),
            "modify": handlers.record(
                "A changed object.",
                {**target, "patch": patch},
                required=("resource", "name", "patch"),
            ),
            "delete": handlers.record("An object goes.", target, required=("resource", "name")),
            "expect": _expectation(),
        },
    )


def _expectation() -> Schema:
    handled = handlers.record(
        "A call of a handler.",
        {
            "handler": handlers.text("The name of the handler."),
            "event": handlers.choice("The type of change.", ["Added", "Modified", "Deleted", "Resync"]),
            "times": handlers.whole("How often.", minimum=0, default=1),
        },
        required=("handler",),
    )
    call = handlers.record(
        "A call of a plugin's method.",
        {
            "plugin": handlers.text("The name of the plugin."),
            "method": handlers.text("The name of the method."),
            "match": handlers.mapping("Arguments, with * for anything.", examples=[{"text": "*Failed*"}]),
        },
        required=("plugin", "method"),
    )
    return handlers.record(
        "What must have happened when everything rests.",
        {
            "handled": handlers.listing("Calls of handlers.", handled),
            "calls": handlers.listing("Calls of plugins.", call),
        },
    )
