"""A pipeline as a Mermaid flowchart, which Git forges, editors and wikis draw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from serve_app.domain.pipeline import ConcatStep, EqualStep, JoinStep, ModelStep, Pipeline, Reference, Step, SwitchStep

_MOST_CHARACTERS: Final = 28
_ROUND, _BOX, _CHOICE, _JOIN = '(["{}"])', '["{}"]', '{{{{"{}"}}}}', '[/"{}"/]'
# What Mermaid would read as markup, as its entities.
_ENTITIES: Final = str.maketrans({"#": "#35;", "&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "|": "#124;"})


def draw(plan: Pipeline) -> str:
    """Draw a pipeline: inputs on the left, outputs on the right; dashed arrows are the cases of a switch."""
    ids: dict[str, str] = {}
    lines = ["flowchart LR"]
    for given in plan.inputs.values():
        what = f"{given.datatype} {list(given.shape)}" if given.kind == "tensor" else given.kind
        ids[given.name] = f"n{len(ids)}"
        lines.append(f"  {ids[given.name]}{_shape(_ROUND, given.name, what + (' (many)' if given.many else ''))}")
    links: list[str] = []
    for name, step in plan.steps.items():
        ids[name] = f"n{len(ids)}"
        lines.append(f"  {ids[name]}{_shape(*_described(name, step))}")
        links += [f"  {ids[reference.name]} {arrow} {ids[name]}" for reference, arrow in _links(step)]
    for at, (name, output) in enumerate(plan.outputs.items()):
        lines.append(f"  o{at}{_shape(_ROUND, name, str(output.reference))}")
        links.append(f"  {ids[output.reference.name]} --> o{at}")
    return "\n".join([*lines, *links, ""])


def _described(name: str, step: Step) -> tuple[str, str, str]:
    match step:
        case ModelStep():
            version = "" if step.version is None else f" {step.version}"
            return _BOX, name, f"{'map ' if step.over else ''}{step.model}{version}"
        case SwitchStep():
            return _CHOICE, name, f"switch {step.on}"
        case EqualStep():
            return _CHOICE, name, "equal"
        case ConcatStep():
            return _JOIN, name, f"concat {step.axis}"
        case JoinStep():
            return _JOIN, name, "join"


def _links(step: Step) -> Iterator[tuple[Reference, str]]:
    """Arrows to a step: solid ones for what it always needs, dashed ones for what it may choose."""
    yield from ((reference, "-->") for reference in {each.name: each for each in step.needs()}.values())
    if isinstance(step, SwitchStep):
        labels: dict[str, list[str]] = {}
        references: dict[str, Reference] = {}
        for case, chosen in (*step.cases.items(), ("default", step.default)):
            if isinstance(chosen, Reference):
                labels.setdefault(chosen.name, []).append(case)
                references[chosen.name] = chosen
        for name, cases in labels.items():
            yield references[name], f'-. "{_text(", ".join(cases))}" .->'


def _shape(shape: str, *said: str) -> str:
    return shape.format("<br>".join(map(_text, said)))


def _text(text: str) -> str:
    short = text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
    return short.translate(_ENTITIES)
