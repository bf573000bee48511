"""Serves the folders that libraries wrote, and compares each answer with the library's: ``make test-parity``.

Folders that `serve-app validate` would refuse are counted as refused. All others are served by one real server; each
request is sent alone, and then all of them by several clients at once, in another order. Writes ``parity.json`` and
``parity.md``. Ends with status 1 where an answer differs, or a folder is refused that is not expected to be.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.progress import track

from benchmarks.machine import Machine, describe
from benchmarks.parity.cases import FAILED, FILE
from benchmarks.parity.image_check import Outcome, check_all
from benchmarks.publishing import measured_on, now, publish_report, table
from benchmarks.server import PROXY, SERVE_APP_RUN, Server, demo_document, is_ready
from serve_app.composition import describe_models
from serve_app.config.args import AppArgs
from serve_app.errors import ConfigError

_CLIENTS = 8
_TIMEOUT_S = 120.0
_READY_WITHIN_S = 600.0
_OUTCOMES = ("same", "different", "refused", "not exported")


@dataclass(slots=True)
class Judged:
    """What was found of one folder.

    Attributes:
        name: Of the folder.
        kind: Of its requests.
        library: That wrote it.
        outcome: One of `_OUTCOMES`.
        reason: Why, in one line: the message, or the first answer that differs.
        expected: Whether it is as expected: the same, or refused where its library does what is not supported.
        compared: Answers that were compared.
        deviation: The largest difference of a number.
    """

    name: str
    kind: str
    library: str
    outcome: str
    reason: str = ""
    expected: bool = True
    compared: int = 0
    deviation: float = 0.0


def refusals(folders: Sequence[Path], cases: Mapping[str, Any]) -> dict[str, str]:
    """The first line of what `validate` says of each folder that it refuses, by name."""
    found = {}
    for folder in track(folders, "validating", console=Console(stderr=True)):
        try:
            describe_models(AppArgs.model_validate({"models": [entry(folder, cases[folder.name])]}))
        except ConfigError as error:
            found[folder.name] = str(error.problems[0])
    return found


def entry(folder: Path, cases: Mapping[str, Any]) -> dict[str, Any]:
    """A model's entry of a configuration."""
    processor = {"processor": cases["processor"]} if cases["processor"] else {}
    return {"name": folder.name, "path": str(folder), "task": cases["task"], **processor}


def difference(answer: Any, wanted: Any) -> float:
    """The largest difference of two numbers; infinite where the answers are not of one form."""
    if isinstance(wanted, dict) and "score" in wanted:
        return (
            difference(answer.get("score"), wanted["score"]) if answer.get("label") == wanted["label"] else float("inf")
        )
    if isinstance(wanted, list):
        if not isinstance(answer, list) or len(answer) != len(wanted):
            return float("inf")
        if wanted and isinstance(wanted[0], dict):
            # Labels whose scores are nearly equal may come in another order.
            given, expected = ({each["label"]: each["score"] for each in each_list} for each_list in (answer, wanted))
            return max((abs(given.get(label, 1e9) - score) for label, score in expected.items()), default=0.0)
        return max((difference(*pair) for pair in zip(answer, wanted, strict=True)), default=0.0)
    if isinstance(wanted, int | float) and isinstance(answer, int | float):
        return abs(answer - wanted) / max(1.0, abs(wanted))
    return 0.0 if answer == wanted else float("inf")


def asked(client: httpx.Client, name: str, body: Mapping[str, Any]) -> tuple[Any, str]:
    """The answer to one request, or why there is none."""
    reply = client.post(f"/v1/models/{name}/predict", json=body, headers={"X-Timeout-Ms": str(int(_TIMEOUT_S * 1e3))})
    if reply.status_code != 200:
        return None, f"{reply.status_code}: {reply.text[:200]}"
    return reply.json(), ""


def served(url: str, cases: Mapping[str, Any]) -> dict[str, tuple[int, float, str]]:
    """By name: answers compared, the largest difference, and the first fault."""
    jobs = [(name, number) for name, each in cases.items() for number in range(len(each["requests"]))]
    shuffled = random.Random(0).sample(jobs, len(jobs))
    found: dict[str, list[Any]] = {name: [0, 0.0, ""] for name in cases}

    def ask(job: tuple[str, int]) -> tuple[str, int, float, str]:
        name, number = job
        request = cases[name]["requests"][number]
        answer, fault = asked(client, name, request["body"])
        if isinstance(answer, dict):
            answer = answer.get("predictions", answer.get("outputs", answer))
        deviation = 0.0 if fault else difference(unwrapped(answer, request), request["answer"])
        if not fault and deviation > cases[name]["tolerance"]:
            shown = map(short, (request["body"], answer, request["answer"]))
            fault = f"differs by {deviation:.3g}: {' gives '.join(shown)} is right"
        return name, number, deviation, fault

    limits = httpx.Limits(max_connections=_CLIENTS)
    with (
        httpx.Client(base_url=url, timeout=_TIMEOUT_S, limits=limits) as client,
        ThreadPoolExecutor(_CLIENTS) as pool,
    ):
        for when in ("alone", f"{_CLIENTS} clients"):
            answers = map(ask, jobs) if when == "alone" else pool.map(ask, shuffled)
            for name, _, deviation, fault in track(answers, when, len(jobs), console=Console(stderr=True)):
                kept = found[name]
                kept[0] += 1
                if not fault:
                    kept[1] = max(kept[1], deviation)
                elif not kept[2]:
                    kept[2] = f"{when}: {fault}"
    return {name: (kept[0], kept[1], kept[2]) for name, kept in found.items()}


def unwrapped(answer: Any, request: Mapping[str, Any]) -> Any:
    """The answer to one text, which comes in a list of one."""
    lone = not isinstance(request["body"].get("inputs"), list)
    wanted = request["answer"]
    nested = isinstance(wanted, list) and wanted and isinstance(wanted[0], list)
    return answer[0] if lone and not nested and isinstance(answer, list) and len(answer) == 1 and isinstance(
        answer[0], list) else answer  # fmt: skip


def short(value: Any) -> str:
    """The beginning of a value."""
    text = json.dumps(value)
    return text if len(text) < 90 else f"{text[:87]}..."


def judge(root: Path) -> list[Judged]:
    """Serve and ask every folder."""
    folders = sorted(path.parent for path in root.glob(f"*/{FILE}"))
    cases = {folder.name: json.loads((folder / FILE).read_text()) for folder in folders}
    refused = refusals(folders, cases)
    judged = [
        Judged(path.parent.name, kind_of(path.parent.name), "", "not exported", path.read_text())
        for path in sorted(root.glob(f"*/{FAILED}"))
    ]
    for name, reason in refused.items():
        wanted = cases[name]["refused"]
        outcome = "not exported" if "cannot be loaded" in reason else "refused"
        expected = (bool(wanted) and wanted in reason) or outcome == "not exported"
        judged.append(Judged(name, cases[name]["kind"], cases[name]["library"], outcome, reason, expected))
    here = {name: each for name, each in cases.items() if name not in refused}
    with tempfile.TemporaryDirectory(prefix="serve-app-") as temporary:
        for name in here:
            shutil.copytree(root / name, Path(temporary) / name)
        document = demo_document(
            pools=[
                {
                    "name": "all",
                    "path": f"{temporary}/*",
                    "memory": "8GiB",
                    "defaults": {"task": "text-classification"},
                    "members": {
                        name: {
                            key: value for key, value in entry(root / name, each).items() if key not in {"name", "path"}
                        }
                        for name, each in here.items()
                    },
                }
            ]
        )
        with Server("parity", document, SERVE_APP_RUN) as server:
            server.wait_until(lambda: is_ready(server.urls[PROXY]), _READY_WITHIN_S)
            found = served(server.urls[PROXY], here)
    for name, (compared, deviation, fault) in found.items():
        each = cases[name]
        outcome = "different" if fault or each["refused"] else "same"
        judged.append(
            Judged(name, each["kind"], each["library"], outcome, fault, outcome != "different", compared, deviation)
        )
    return judged


def kind_of(name: str) -> str:
    """The kind of a folder that could not be written, by its name."""
    kinds = {"text": "text classification", "sentence": "sentence embeddings", "tokens": "tokenizers",
             "image": "pictures", "audio": "sounds", "optimum": "Optimum's exports"}  # fmt: skip
    return kinds.get(name.partition("-")[0], name.partition("-")[0])


def summary(judged: Sequence[Judged], pictures: Sequence[Outcome]) -> str:
    """A table of outcomes by kind."""
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for each in judged:
        counted[each.kind][each.outcome] += 1
        counted[each.kind]["answers"] += each.compared
    for picture in pictures:
        counted[_PICTURES][_VERDICTS.get(picture.verdict, picture.verdict)] += 1
    rows = [
        [kind, *(str(found[outcome]) for outcome in _OUTCOMES), f"{found['answers']:,}" if found["answers"] else ""]
        for kind, found in counted.items()
    ]
    return table(["requests", *_OUTCOMES, "answers compared"], rows)


_PICTURES = "preprocessed pictures"
_VERDICTS = {"refused, too": "not exported"}
_ABOUT = """\
# Answers beside the library's

Small models with random weights, written and asked by the libraries themselves (`make test-parity`), and served by
one server. Each request is sent alone, and then all of them by eight clients at once. *Same*: every number is within
1e-4 of the library's (2e-3 for pictures of Optimum's exports, since two kernels resize them). *Refused*: by
`serve-app validate`, by name. *Not exported*: the library or its exporter does not make the model, or its graph answers
otherwise than the model. Every folder and reason is in `parity.json`."""
_ABOUT_PICTURES = f"""\
*{_PICTURES.capitalize()}*: the model's input beside that of transformers' Pillow backend, timm and torchvision; the
same is within 1e-3 of 255 levels, and not exported is what the library refuses as well or makes of varying size.
Beside other backends: [how close the pixels are](../image-folders.md#how-close-the-pixels-are)."""
_DECIDED = "A folder that `serve-app validate` takes answers as its library does; what it refuses it names."


def report(judged: Sequence[Judged], machine: Machine, pictures: Sequence[Outcome]) -> str:
    """The page: how many, and the names of what could not be exported or is refused."""
    parts = [_ABOUT, summary(judged, pictures)]
    if pictures:
        same = {each.group for each in pictures if each.verdict == "same"}
        none = [group for group in dict.fromkeys(each.group for each in pictures) if group not in same]
        served = sum(each.verdict == "served" for each in pictures)
        parts += [_ABOUT_PICTURES, f"Served, though the library refuses: {served}."]
        parts += [f"Classes of which no case is the same: {', '.join(none)}."] if none else []
    for outcome in ("different", "refused", "not exported"):
        names = [each.name for each in judged if each.outcome == outcome]
        if names:
            parts.append(f"{outcome.capitalize()}: {_listed(names)}.")
    same = {each.name.partition("-architecture-")[2] for each in judged if each.outcome == "same"} - {""}
    parts += [f"Architectures that answer the same: {', '.join(sorted(same))}.", _DECIDED, measured_on(now(), machine)]
    return "\n\n".join(parts) + "\n"


def _listed(names: Sequence[str]) -> str:
    """Architectures without what all of their kind have in front."""
    return ", ".join(dict.fromkeys(name.replace("-architecture-", " ") for name in names))


def main(
    root: Annotated[Path, typer.Argument(help="The folder that the *_cases modules wrote.")],
    *,
    images: Annotated[Path | None, typer.Option(help="The folder that image_cases wrote.")] = None,
    publish: Annotated[bool, typer.Option(help="Write docs/benchmarks/parity.*")] = False,
) -> None:
    """Compare every folder's answers with its library's."""
    console = Console()
    machine = describe({})
    pictures = [] if images is None else check_all(images)
    judged = judge(root)
    for each in judged:
        if not each.expected:
            print(f"{each.outcome}: {each.name}: {each.reason}")
    found = {"models": [asdict(each) for each in judged], "pictures": [asdict(each) for each in pictures]}
    figures = {"at": now(), "machine": asdict(machine), **found}
    publish_report(console, "parity", figures, report(judged, machine, pictures), publish=publish)
    if not all(each.expected for each in judged) or any(each.verdict == "different" for each in pictures):
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
