"""Compares what the server makes of pictures with what the libraries made of them.

    python -m benchmarks.parity.image_check OUT [--json FILE]

reads what `benchmarks.parity.image_cases` wrote to OUT.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from serve_app.errors import ConfigError
from serve_app.payloads import Media, ModelSignature, TensorSpec
from serve_app.processors import create_processor
from serve_app.processors.image import ImageProcessor

_EXACT = 1e-3
"""A difference in levels below which an array is the same: single precision, and no level."""
_KERNELS = 2.001
"""The same for two implementations of a filter."""


@dataclasses.dataclass(slots=True)
class Outcome:
    """What became of a case.

    Attributes:
        group: The class, ``timm`` or ``torchvision``.
        name: Of the variant.
        verdict: ``same`` as the backend that uses Pillow, or, where there is none, within two levels of the default
            one; ``different``; ``refused`` though the library does it, ``refused, too``, or ``served``
            though the library does not.
        most: The largest difference from the backend that uses Pillow, levels of 255.
        default_most: The largest from the library's default backend.
        default_mean: Its mean.
        converted_most: The largest of pictures with transparency or 16 bits, which are converted otherwise on purpose.
        message: Why it was refused, or why the library failed.
    """

    group: str
    name: str
    verdict: str
    most: float = 0.0
    default_most: float = 0.0
    default_mean: float = 0.0
    converted_most: float = 0.0
    message: str = ""


def main() -> None:
    """Compare every case, print a table, and write a file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    outcomes = check_all(arguments.out)
    print(table(outcomes))
    if arguments.json:
        arguments.json.write_text(json.dumps([dataclasses.asdict(each) for each in outcomes], indent=1) + "\n")


def check_all(out: Path) -> list[Outcome]:
    """Every case in a folder."""
    pictures = {path.name: path.read_bytes() for path in sorted((out / "pictures").iterdir())}
    return [check(path.parent, pictures) for path in sorted(out.glob("*/*/case.json"))]


def check(folder: Path, pictures: dict[str, bytes]) -> Outcome:
    """One case, for a model whose height and width are declared, and for one with free axes only."""
    case = json.loads((folder / "case.json").read_text())
    with np.load(folder / "expected.npz") as archive:
        expected = dict(archive)
    outcome = Outcome(case["group"], case["name"], "same", message=case["problem"])
    shape = next(iter(expected.values())).shape if expected else (3, -1, -1)
    for axes in ((-1, *shape), (-1, -1, -1, -1)):
        try:
            processor = _processor(folder, axes, case["options"])
        except ConfigError as error:
            outcome.verdict = "refused, too" if case["problem"] else "refused"
            outcome.message = "; ".join(error.problems) + (f" (library: {case['problem']})" if case["problem"] else "")
            return outcome
        if case["problem"]:
            outcome.verdict = "served"
            continue
        _compare(processor, pictures, expected, outcome)
    return outcome


def table(outcomes: list[Outcome]) -> str:
    """A line for each class, and one for each case that is not as in the library."""
    groups = defaultdict(list)
    for each in outcomes:
        groups[each.group].append(each)
    lines = [
        "| class | cases | same | different | refused | refused, too | served | most | default: most | mean | other |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for group, members in groups.items():
        counts = [str(sum(each.verdict == verdict for each in members)) for verdict in _VERDICTS]
        most = [f"{max(getattr(each, name) for each in members):.3g}" for name in _MEASURES]
        lines.append(f"| {group} | {len(members)} | {' | '.join([*counts, *most])} |")
    lines.extend(
        f"{each.group} {each.name}: {each.verdict}, {each.most:.3g}; {each.message[:200]}"
        for each in outcomes
        if each.verdict not in {"same", "refused, too"}
    )
    return "\n".join(lines)


_VERDICTS = ("same", "different", "refused", "refused, too", "served")
_MEASURES = ("most", "default_most", "default_mean", "converted_most")


def _processor(folder: Path, shape: tuple[int, ...], options: dict[str, Any]) -> ImageProcessor:
    signature = ModelSignature((TensorSpec("pixel_values", "FP32", shape),), (TensorSpec("logits", "FP32", (-1, -1)),))
    made = create_processor("image-classification", signature, folder, options)
    assert isinstance(made, ImageProcessor)
    return made


def _compare(processor: ImageProcessor, pictures: dict[str, bytes], expected: dict[str, Any], outcome: Outcome) -> None:
    settings = processor.settings
    std = np.array(settings.std[::-1] if settings.bgr else settings.std)
    levels = (std / settings.scale)[:, None, None]
    for name, content in pictures.items():
        got = None
        for backend in ("pil", "default"):
            right = expected.get(f"{backend}/{name}")
            if right is None:
                continue
            got = got if got is not None else processor.preprocess(Media(content, "", {}))["pixel_values"][0]
            if right.shape != got.shape:
                outcome.verdict, outcome.most = "different", 255.0
                continue
            off = np.abs(got - right) * levels
            if "~" in name:
                outcome.converted_most = max(outcome.converted_most, float(off.max()))
            elif backend == "default":
                outcome.default_most = max(outcome.default_most, float(off.max()))
                outcome.default_mean = max(outcome.default_mean, float(off.mean()))
            else:
                outcome.most = max(outcome.most, float(off.max()))
    pillow = any(key.startswith("pil/") for key in expected)
    if outcome.most > _EXACT or (not pillow and outcome.default_most > _KERNELS):
        outcome.verdict = "different"


if __name__ == "__main__":
    main()
