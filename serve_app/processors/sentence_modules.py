"""Sentence-transformers' modules after a transformer: pooling, dense layers and normalization.

Facts of sentence-transformers 6.2 (``modules/pooling.py``, ``modules/dense.py``, ``modules/layer_norm.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from serve_app.errors import ConfigError
from serve_app.processors.folder_keys import FolderKey, check_keys, followed, irrelevant, limited
from serve_app.processors.model_folder import ModelFolder

Mode: TypeAlias = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
Vectors: TypeAlias = npt.NDArray[np.float32]
Step: TypeAlias = Callable[[Vectors], Vectors]

MODES: Final[tuple[Mode, ...]] = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
SHORTEST_VECTOR: Final = 1e-12
_FEWEST: Final = 1e-9
_SWITCHES: Final[Mapping[str, Mode]] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""How older releases wrote modes, in the order in which vectors of several modes are put side by side."""

MODULE_KEYS: Final[Mapping[str, Mapping[str, FolderKey]]] = {
    "Pooling": {
        "embedding_dimension": irrelevant("the model's file has its width"),
        "word_embedding_dimension": irrelevant("the model's file has its width"),
        "pooling_mode": followed("how vectors of tokens become one; several are put side by side", str, list),
        **dict.fromkeys(_SWITCHES, followed("as pooling_mode", bool)),
        "include_prompt": followed("whether tokens of a prompt count", bool),
    },
    "Dense": {
        "in_features": followed("width, which the weights must have", int),
        "out_features": followed("width, which the weights must have", int),
        "bias": followed("whether there is one", bool),
        "activation_function": followed("what comes behind it", str),
        "module_input_name": limited("its input", "sentence_embedding"),
        "module_output_name": limited("its output", "sentence_embedding"),
        "use_residual": followed("whether its input is added to its output", bool),
    },
    "LayerNorm": {"dimension": followed("width, which the weights must have", int)},
    "Normalize": {
        "module_input_name": limited("its input", "sentence_embedding"),
        "module_output_name": limited("its output", "sentence_embedding"),
    },
    "Dropout": {"dropout": irrelevant("training only")},
}
"""Keys of the config.json of each module's folder, by module. Other modules are refused."""

SENTENCE_KEYS: Final[Mapping[str, FolderKey]] = {
    "__version__": irrelevant("versions"),
    "prompts": followed("texts to put before a text, by name", dict),
    "default_prompt_name": followed("the prompt of requests that name none", str),
    "similarity_fn_name": irrelevant("similarities are cosines here, as in Hugging Face's task"),
    "model_type": limited("the kind of the whole", "SentenceTransformer", "CrossEncoder"),
    "activation_fn": followed("what makes scores of a cross-encoder's output", str),
    "truncate_dim": limited("how many numbers are kept", advice="send dimensions with each request"),
    "keep_in_fp32_modules": irrelevant("how the model itself is run"),
}
"""Keys of config_sentence_transformers.json."""

_erf: Final[Step] = np.vectorize(math.erf, otypes=[np.float32])
_ACTIVATIONS: Final[Mapping[str, Step]] = {
    "torch.nn.modules.linear.Identity": lambda x: x,
    "torch.nn.modules.activation.Tanh": np.tanh,
    "torch.nn.modules.activation.ReLU": lambda x: np.maximum(x, np.float32(0)),
    "torch.nn.modules.activation.Sigmoid": lambda x: np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x)),
    "torch.nn.modules.activation.SiLU": lambda x: x * np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x)),
    "torch.nn.modules.activation.GELU": lambda x: x * np.float32(0.5) * (1 + _erf(x / np.float32(math.sqrt(2)))),
}
_EPSILON: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Chain:
    """How token vectors become text vectors.

    Attributes:
        modes: Pooling modes; several results are concatenated. Empty: not specified.
        include_prompt: Whether tokens of a prompt count.
        steps: Further steps, in order.
        taken: Numbers that the steps take, if declared.
        width: Numbers that they return, if declared.
        normalize: Whether the result has length 1.
        transformer: Subfolder of the transformer and its tokenizer; empty: the folder itself.
        file: Source of the pooling.
    """

    modes: tuple[Mode, ...] = ()
    include_prompt: bool = True
    steps: tuple[Step, ...] = ()
    taken: int | None = None
    width: int | None = None
    normalize: bool = False
    transformer: str = ""
    file: str = ""


def read_chain(folder: ModelFolder, ignored: Collection[str]) -> Chain:
    """Read modules.json and its folders.

    Raises:
        ConfigError: A module or a key is unknown, a file is missing, or weights do not fit.
    """
    listed = folder.json_list("modules.json")
    steps: list[tuple[str, Step]] = []
    names: list[str] = []
    modes: tuple[Mode, ...] = ()
    include, transformer, pooling = True, "", ""
    taken: int | None = None
    width: int | None = None
    for number, module in enumerate(listed):
        kind, path = _module(number, module)
        names.append(kind)
        if kind == "Transformer":
            transformer = path
            continue
        if kind not in MODULE_KEYS:
            fault = f"modules.json: {kind} is not supported, only Transformer, {', '.join(MODULE_KEYS)}"
            raise ConfigError((f"{fault}; export the whole model to one ONNX file",))
        file = f"{path}/config.json"
        config = folder.json(file)
        if kind in {"Pooling", "Dense", "LayerNorm"} and folder.find(file) is None:
            raise ConfigError((f"{file}: there is no such file, and modules.json names its folder",))
        if kind == "Pooling":
            pooling = file
            if modes or steps:
                raise ConfigError(("modules.json: Pooling must come once, and right behind the Transformer",))
            modes, include = _modes(file, config, ignored), config.get("include_prompt") is not False
            continue
        check_keys(file, config, MODULE_KEYS[kind], ignored)
        if kind in {"Dense", "LayerNorm"}:
            step, first, last = (_dense if kind == "Dense" else _layer_norm)(folder, path, config)
            if width is not None and first != width:
                raise ConfigError((f"{file}: takes {first} numbers, and the module before it makes {width}",))
            names[-1] += f" {first} to {last}"
            taken, width = taken or first, last
            steps.append((kind, step))
        elif kind == "Normalize":
            steps.append((kind, unit))
    normalize = bool(steps) and steps[-1][0] == "Normalize"
    if normalize:
        steps.pop()
    if names:
        folder.note("modules", ", ".join(names), "modules.json")
    if not include:
        folder.note("tokens of prompts", "not pooled", f"{pooling}: include_prompt")
    return Chain(modes, include, tuple(step for _, step in steps), taken, width, normalize, transformer, pooling)


def pool(tokens: Vectors, mask: npt.NDArray[np.bool_], modes: Sequence[Mode], prompt: int) -> Vectors:
    """Text vectors, (rows, modes x width).

    Args:
        tokens: (rows, tokens or more, width): a batch may be longer than these texts.
        mask: Marks tokens, (rows, tokens); padding is at the end.
        modes: At least one.
        prompt: Leading tokens of each text to skip.
    """
    tokens = tokens[:, : mask.shape[1]]
    counted = mask
    if prompt:
        counted = mask.copy()
        counted[:, :prompt] = False
    return np.concatenate([_pooled(tokens, mask, counted, mode) for mode in modes], axis=1)


def _pooled(tokens: Vectors, mask: npt.NDArray[np.bool_], counted: npt.NDArray[np.bool_], mode: Mode) -> Vectors:
    rows = np.arange(len(tokens))
    if mode == "cls":
        return np.asarray(tokens[rows, counted.argmax(axis=1)], np.float32)
    if mode == "lasttoken":
        last = mask.shape[1] - 1 - counted[:, ::-1].argmax(axis=1)
        return np.asarray(tokens[rows, last] * counted[rows, last][:, None], np.float32)
    if mode == "max":
        return np.asarray(np.where(counted[:, :, None], tokens, np.float32("-inf")).max(axis=1), np.float32)
    weights = counted.astype(np.float32)
    if mode == "weightedmean":
        weights = weights * np.arange(1, weights.shape[1] + 1, dtype=np.float32)
    summed = np.einsum("rtd,rt->rd", tokens, weights)
    total = np.maximum(weights.sum(axis=1, keepdims=True), np.float32(_FEWEST))
    return np.asarray(summed / (np.sqrt(total) if mode == "mean_sqrt_len_tokens" else total), np.float32)


def unit(vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Scale vectors to length 1; a zero vector stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, SHORTEST_VECTOR), vectors.dtype)


def _module(number: int, module: Any) -> tuple[str, str]:
    """Class name and path of an entry."""
    kind, path = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(path, str):
        raise ConfigError((f"modules.json: entry {number}: must have a type and a path",))
    if not kind.startswith("sentence_transformers."):
        raise ConfigError((f"modules.json: {kind[:80]} is code of the folder, which is not run",))
    if path.startswith("/") or ".." in path.split("/"):
        raise ConfigError((f"modules.json: path {path[:80]!r} leads out of the model's folder",))
    return kind.rpartition(".")[2], path


def _modes(file: str, config: Mapping[str, Any], ignored: Collection[str]) -> tuple[Mode, ...]:
    check_keys(file, config, MODULE_KEYS["Pooling"], ignored)
    named = config.get("pooling_mode")
    if named is None:
        return tuple(mode for switch, mode in _SWITCHES.items() if config.get(switch)) or ("mean",)
    names = tuple(named) if isinstance(named, list) else (named,)
    for name in names or ("",):
        if name not in MODES:
            raise ConfigError((f"{file}: pooling_mode: {str(name)[:60]!r} is not known, only {', '.join(MODES)}",))
    return cast("tuple[Mode, ...]", names)


def _dense(folder: ModelFolder, path: str, config: Mapping[str, Any]) -> tuple[Step, int, int]:
    weights = _weights(folder, path)
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in _ACTIVATIONS:
        known = ", ".join(name.rpartition(".")[2] for name in _ACTIVATIONS)
        fault = f"{path}/config.json: activation_function: {str(activation)[:80]} is not supported, only {known}"
        raise ConfigError((fault,))
    act = _ACTIVATIONS[activation]
    taken, made = config.get("in_features"), config.get("out_features")
    weight = _weight(weights, path, "linear.weight", (made, taken))
    bias = _weight(weights, path, "linear.bias", (made,)) if config.get("bias", True) else None
    residual = config.get("use_residual", False)
    across = _weight(weights, path, "residual.weight", (made, taken)) if residual and taken != made else None

    def step(vectors: Vectors) -> Vectors:
        out = vectors @ weight.T
        out = act(out if bias is None else out + bias)
        if residual:
            out = out + (vectors if across is None else vectors @ across.T)
        return np.asarray(out, np.float32)

    return step, weight.shape[1], len(weight)


def _layer_norm(folder: ModelFolder, path: str, config: Mapping[str, Any]) -> tuple[Step, int, int]:
    weights = _weights(folder, path)
    weight = _weight(weights, path, "norm.weight", (config.get("dimension"),))
    bias = _weight(weights, path, "norm.bias", weight.shape)

    def step(vectors: Vectors) -> Vectors:
        centred = vectors - vectors.mean(axis=1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=1, keepdims=True) + np.float32(_EPSILON))
        return np.asarray(centred / spread * weight + bias, np.float32)

    return step, len(weight), len(weight)


def _weights(folder: ModelFolder, path: str) -> dict[str, npt.NDArray[Any]]:
    name = f"{path}/model.safetensors"
    file = folder.find(name)
    if file is None:
        other = f"; {path}/pytorch_model.bin is a program of pickle, which is not run: save the model again"
        found = folder.find(f"{path}/pytorch_model.bin") is not None
        raise ConfigError((f"{name}: there is no such file{other if found else ''}",))
    try:
        weights: dict[str, npt.NDArray[Any]] = load_file(file)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError((f"{name}: cannot be read: {error}",)) from error
    return weights


def _weight(
    weights: Mapping[str, npt.NDArray[Any]], path: str, name: str, shape: Sequence[int | None]
) -> npt.NDArray[np.float32]:
    found = weights.get(name)
    if found is None:
        raise ConfigError((f"{path}/model.safetensors: holds no {name}",))
    if len(found.shape) != len(shape) or any(
        size is not None and size != own for size, own in zip(shape, found.shape, strict=True)
    ):
        raise ConfigError(
            (f"{path}/model.safetensors: {name} is {list(found.shape)}, and {path}/config.json says {list(shape)}",)
        )
    return found.astype(np.float32)
