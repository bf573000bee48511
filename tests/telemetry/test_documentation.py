"""The documentation tells of the metrics that there are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from serve_process import ROOT

_COUNTERS = {"Counter", "counter", "Total", "CounterMetricFamily"}
_NO_METRICS = {"ContextVar"}
_SERIES = re.compile("_(sum|count|bucket)$")


def _declared() -> Iterator[str]:
    """Every metric's name as Prometheus shows it: a call with a name like ours first declares one."""
    for file in (ROOT / "serve_app").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                kind = ast.unparse(node.func)
                name = str(node.args[0].value)
                if name.startswith("serve_app_") and kind not in _NO_METRICS:
                    yield f"{name}_total" if kind in _COUNTERS else name


def test_every_metric_is_documented_and_no_other() -> None:
    """By the name that a page of metrics shows, or a series of it, in some page but that of examples of new ones."""
    text = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md") if page.name != "extending.md")
    series = {re.sub(_SERIES, "", name) for name in re.findall(r"\bserve_app_\w+", text)}
    named = series - {"serve_app_client", "serve_app_simulator"}

    assert named == set(_declared())
