"""What the models of a repository set of the classes, which they share here and not in Triton."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from serve_app.triton.fields import TritonDocument
from serve_app.triton.positions import Path
from serve_app.triton.queues import CLASSES, ClassSetting, QueueSettings, priorities_of


class ModelQueues(NamedTuple):
    """A model that is served.

    Attributes:
        document: Its `config.pbtxt`; ``None`` where there is none, and so nothing is asked.
        queues: What it asks.
    """

    document: TritonDocument | None
    queues: QueueSettings

    def tell(self, path: Path, text: str) -> None:
        """Say how one of its fields is followed otherwise."""
        if self.document is not None:
            self.document.tell("note", path, text)


def merge_classes(models: Sequence[ModelQueues], given: Mapping[str, Any]) -> dict[str, Any]:
    """What stands under `classes`, where all models say the same. The rest is told.

    Args:
        models: All that are served.
        given: What the configuration says of classes, which counts more.
    """
    return _priorities(models, given.get("priorities")) | _settings(models, given)


def _priorities(models: Sequence[ModelQueues], given: Any) -> dict[str, Any]:
    levelled = [model for model in models if model.queues.default_level is not None]
    defaults = {level for model in levelled if (level := model.queues.default_level) is not None}
    if given is None and len(defaults) == 1:
        return {"priorities": priorities_of(defaults.pop())}
    why = (
        "models of the repository have other default levels, and all share classes.priorities: 2 is normal"
        if given is None
        else "classes.priorities of the configuration counts"
    )
    for model in levelled:
        model.tell(model.queues.levels, why)
    return {}


def _settings(models: Sequence[ModelQueues], given: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[tuple[str, str], list[tuple[ModelQueues, ClassSetting]]] = defaultdict(list)
    for model in models:
        for setting in model.queues.classes:
            settings[setting.name, setting.key].append((model, setting))
    merged: dict[str, dict[str, Any]] = {}
    told: set[tuple[int, Path]] = set()
    for (name, key), each in sorted(settings.items(), key=lambda item: (CLASSES.index(item[0][0]), item[0][1])):
        section, values = given.get(name), [setting.value for _, setting in each]
        if isinstance(section, Mapping) and key in section:
            why = f"classes.{name}.{key} of the configuration counts"
        elif len(each) < len(models):
            why = f"a class is shared by all models, and not all of the repository have this: set {key} under classes"
        elif key != "queue" and len(set(values)) > 1:
            why = f"a class is shared by all models, and those of the repository differ in it: set {key} under classes"
        else:
            merged.setdefault(name, {})[key] = int(sum(values)) if key == "queue" else values[0]
            continue
        for model, setting in each:
            if (id(model), setting.path) not in told:  # a policy of several classes is told once
                told.add((id(model), setting.path))
                model.tell(setting.path, why)
    return dict(merged)
