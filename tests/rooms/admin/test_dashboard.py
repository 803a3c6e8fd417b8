"""deploy/dashboard.json: it is current, Grafana can read it, and Prometheus can answer its queries."""

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from declctl.admin.dashboard import dashboard
from declctl.admin.metrics import MetricInfo, catalog
from declctl.kit.text import to_json

FILE = Path(__file__).parents[3] / "deploy/dashboard.json"
OF_THE_TARGET = {"job", "instance"}  # labels that Prometheus adds
METRICS = {info.name: info for info in catalog()}

register_default_plugins()


def panels() -> list[dict[str, Any]]:
    """Every panel, those of collapsed rows included."""
    found = dashboard()["panels"]
    return [*found, *(panel for row in found for panel in row.get("panels", ()))]


def expressions() -> list[str]:
    """Every query, with values for Grafana's variables of time."""
    targets = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    targets += [each["expr"] for each in dashboard()["annotations"]["list"]]
    return [each.replace("$__rate_interval", "5m").replace("$__range", "1h") for each in targets]


def selectors(expression: str) -> Iterator[tuple[Any, str]]:
    """The selectors of a query, each with the function that it is an argument of."""

    def walk(node: Any, function: str) -> Iterator[tuple[Any, str]]:
        match node:
            case promql_parser.VectorSelector():
                yield node, function
            case promql_parser.MatrixSelector():
                yield node.vector_selector, function
            case promql_parser.Call():
                for each in node.args:
                    yield from walk(each, node.func.name)
            case promql_parser.AggregateExpr() | promql_parser.ParenExpr():
                yield from walk(node.expr, function)
            case promql_parser.BinaryExpr():
                yield from walk(node.lhs, function)
                yield from walk(node.rhs, function)
            case promql_parser.NumberLiteral():
                pass
            case _:
                raise AssertionError(f"{node} is not known to this test")

    return walk(promql_parser.parse(expression), "")


def metric_of(name: str) -> MetricInfo:
    """The metric that a name in a query belongs to."""
    for suffix in ("_bucket", "_sum", "_count"):
        info = METRICS.get(name.removesuffix(suffix))
        if name.endswith(suffix) and info is not None and info.type == "histogram":
            return info._replace(labels=(*info.labels, "le") if suffix == "_bucket" else info.labels)
    return METRICS[name]


@pytest.mark.skipif(sys.platform != "linux", reason="`process_*` are those of Linux")
def test_the_file_is_what_the_generator_writes():
    """`python -m declctl.admin.dashboard > deploy/dashboard.json` renews it."""
    assert FILE.read_text("utf-8") == f"{to_json(dashboard(), indent=2)}\n"


def _read_by_grafana(document: dict[str, Any]) -> dict[str, Any]:
    return json.loads(JSONEncoder().encode(Dashboard.from_json(document)))


def _lost(written: Any, read: Any, path: str = "") -> list[str]:
    """The places of a document that a reader did not take over."""
    if isinstance(written, dict):
        return [
            place
            for name, value in written.items()
            if value is not None
            for place in _lost(value, read.get(name) if isinstance(read, dict) else None, f"{path}.{name}")
        ]
    if isinstance(written, list) and isinstance(read, list) and len(read) == len(written):
        pairs = enumerate(zip(written, read, strict=True))
        return [place for index, (a, b) in pairs for place in _lost(a, b, f"{path}[{index}]")]
    return [] if written == read else [path]


def test_grafana_takes_over_every_field():
    """Grafana's own classes know each field of the file: none is misspelled or in a wrong place."""
    document = json.loads(to_json(dashboard()))
    assert _lost(document, _read_by_grafana(document)) == []


def test_a_field_that_grafana_does_not_know_is_found():
    """The check can fail: in a panel, in its options, and in a query."""
    document = json.loads(to_json(dashboard()))
    graph = next(panel for panel in document["panels"] if panel["type"] == "timeseries")
    graph["gridpos"] = graph.pop("gridPos")
    graph["options"]["legend"]["placment"] = "bottom"
    graph["targets"][0]["expression"] = "up"
    place = f".panels[{document['panels'].index(graph)}]"
    assert set(_lost(document, _read_by_grafana(document))) == {
        f"{place}.gridpos.{each}" for each in "xywh"
    } | {f"{place}.options.legend.placment", f"{place}.targets[0].expression"}


def labels_of(selector: Any) -> set[str]:
    """The labels of the metric that a selector selects."""
    return OF_THE_TARGET | set(metric_of(selector.name).labels)


@pytest.mark.parametrize("expression", expressions())
def test_prometheus_can_answer_each_query(expression: str):
    """Its metrics exist, with the labels that it selects; a counter is seen as a rate, a gauge is not."""
    for selector, function in selectors(expression):
        names = {matcher.name for matcher in selector.matchers.matchers}
        assert OF_THE_TARGET <= names <= labels_of(selector)
        grows = metric_of(selector.name).type in ("counter", "histogram")
        assert (function in ("rate", "increase")) == grows, function

    def check(node: Any) -> bool:
        # `sum by` with a label that the metric does not have would be one line for all.
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            kept = set(node.modifier.labels)
            assert all(kept <= labels_of(selector) for selector, _ in selectors(str(node.expr)))
        return True

    assert promql_parser.walk(promql_parser.parse(expression), check)


def test_every_metric_is_on_the_dashboard():
    """A new metric can be seen without a thought of the dashboard."""
    shown = {metric_of(selector.name).name for each in expressions() for selector, _ in selectors(each)}
    assert shown == {info.name for info in METRICS.values() if info.type != "info"}


def test_each_panel_says_what_it_shows():
    """The description of a panel is the help of its metrics."""
    assert [panel["title"] for panel in panels() if panel["type"] != "row" and not panel["description"]] == []


def test_no_panel_covers_another():
    """Places and ids are unique, and no panel is wider than the dashboard."""
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    taken = dict[tuple[int, int], str]()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        x, y = place["x"], place["y"]
        assert x + place["w"] <= 24
        for cell in itertools.product(range(x, x + place["w"]), range(y, y + place["h"])):
            assert cell not in taken, f"{panel['title']} covers {taken[cell]}"
            taken[cell] = panel["title"]


def test_variables_ask_for_labels_that_there_are():
    """The lists of controllers, jobs and instances come from a metric that each process has."""
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            inner, _, label = variable["query"]["query"].removeprefix("label_values(")[:-1].rpartition(", ")
            selector, _ = next(selectors(inner))
            info = METRICS[selector.name]
            assert label in OF_THE_TARGET | set(info.labels)
            assert not info.only
