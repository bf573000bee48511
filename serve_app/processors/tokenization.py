"""Texts to token ids, and token ids to the tensors of a transformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from serve_app.config.processor import TextOptions
from serve_app.errors import ConfigError, InvalidRequest, UnsupportedMedia
from serve_app.payloads import DTYPES, Media, ModelSignature, Tensors, Texts
from serve_app.processors.buckets import bucket_for, bucket_of, size_classes, widen
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.ranking import describe

Direction: TypeAlias = Literal["left", "right"]

_LONGEST_MODEL = 1_000_000
"""Hugging Face writes 1e30 for "no limit"; above this, a length is no length."""
_DEFAULT_MAX_LENGTH = 512
_SHORTEST_BUCKET = 8
_CHARACTERS_PER_TOKEN = 4
"""English in subword vocabularies; other scripts need about twice the tokens."""
_READ_CHARACTERS_PER_TOKEN = 128
"""A text is cut to this many characters per token of the maximum before it is tokenized: truncation would throw the
rest away, after the work was done."""

_MASK = "attention_mask"
_TYPES = "token_type_ids"
_IDS = "input_ids"


@dataclass(frozen=True, slots=True)
class TextSettings:
    """How texts become tensors.

    Attributes:
        inputs: Numpy dtype of every input of the model, by name.
        max_length: Longer texts are cut, tokens.
        buckets: Lengths that texts are padded to, tokens, ascending. The last is ``max_length``.
        vocabulary: Number of token ids.
        pad_id: Token id of padding.
    """

    inputs: dict[str, np.dtype[Any]]
    max_length: int
    buckets: tuple[int, ...]
    vocabulary: int
    pad_id: int


class TextTokenizer:
    """Makes the tensors of texts. Safe to call from several threads: the tokenizer is not changed after construction.

    Batches are tokenized in parallel, outside Python's lock; the environment variables ``TOKENIZERS_PARALLELISM=false``
    and ``RAYON_NUM_THREADS`` limit that, and are the operator's to set.

    Args:
        tokenizer: Truncates to ``settings.max_length`` and does not pad.
        settings: How texts become tensors.
    """

    def __init__(self, tokenizer: Tokenizer, settings: TextSettings) -> None:
        self._tokenizer = tokenizer
        self.settings = settings
        self._before, self._after = _special_tokens(tokenizer)

    @classmethod
    def create(cls, signature: ModelSignature, folder: ModelFolder, options: TextOptions) -> TextTokenizer:
        """Load ``tokenizer.json`` and fit it to the model. Raises `ConfigError`."""
        tokenizer = _load(folder)
        settings = _text_settings(signature, folder, options, tokenizer)
        tokenizer.no_padding()
        tokenizer.enable_truncation(settings.max_length)
        return cls(tokenizer, settings)

    def estimate(self, texts: Sequence[str] | Sequence[Sequence[int]]) -> int:
        """Guess the bucket without tokenizing: of several texts the mean, since each runs at its own length."""
        longest = self.settings.max_length
        tokens = [min(_guess_tokens(text), longest) for text in texts]
        return bucket_for(-(-sum(tokens) // max(1, len(tokens))), self.settings.buckets)

    def tokenize(
        self, texts: list[str] | list[list[int]], truncate: bool = True, direction: Direction = "right"
    ) -> Tensors:
        """Tokenize texts, or check token ids and take them as they are (no special tokens are added to ids).

        Args:
            texts: One or more, all of one kind.
            truncate: Cut texts that are too long. Ids are never cut: who tokenizes also truncates.
            direction: Where they are cut: at the end (``right``) or at the beginning.

        Returns:
            The model's inputs, (texts, longest text). Padding is on the right. Where texts differ in length there is a
            mask, also of a model that takes none: `cut` and `pad` make what the model takes.

        Raises:
            InvalidRequest: A text is no text, holds half a surrogate pair, has no tokens, or is too long; or an id is
                not in the vocabulary. The message says which.
        """
        if not texts:
            raise InvalidRequest("inputs: at least one text is expected, and none came")
        if isinstance(texts[0], list):
            return self._tensors([self._check_ids(number, ids) for number, ids in enumerate(texts)])
        return self._tensors(self._encode(texts, truncate, direction))

    def count(self, texts: list[str] | list[list[int]]) -> int:
        """Tokens that the model reads for these texts, special tokens included. Raises as `tokenize`."""
        if texts and isinstance(texts[0], str):
            return sum(map(len, self._encode(texts, truncate=True)))
        return sum(len(self._check_ids(number, ids)) for number, ids in enumerate(texts))

    def bucket(self, tensors: Tensors) -> int:
        """The padded length, tokens. Raises `InvalidRequest` for tensors of more than ``max_length`` tokens."""
        return bucket_of(tensors, self.settings.inputs, self.settings.buckets, "tokens")

    def lengths(self, tensors: Tensors) -> Sequence[int]:
        """Tokens of each text."""
        mask = tensors.get(_MASK)
        if mask is None:  # all are as long
            rows, length = tensors[_IDS].shape
            return [length] * rows
        return [int(length) for length in np.count_nonzero(mask, axis=1)]

    def cut(self, tensors: Tensors, rows: Sequence[int], length: int) -> Tensors:
        """Some of the texts, cut or padded to so many tokens."""
        return self.pad({name: tensor[rows, :length] for name, tensor in tensors.items()}, length)

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:
        """Pad on the right, up to ``bucket`` tokens."""
        return {
            name: widen(tensors[name], bucket, self.settings.pad_id if name == _IDS else 0)
            for name in self.settings.inputs
            if name in tensors
        }

    def example(self, rows: int, bucket: int) -> Tensors:
        """Rows of padding between special tokens, which the mask calls text, for warming up."""
        values = {_IDS: self.settings.pad_id, _MASK: 1, _TYPES: 0}
        tensors = {name: np.full((rows, bucket), values[name], dtype) for name, dtype in self.settings.inputs.items()}
        before, after = self._before[:bucket], self._after[: max(0, bucket - len(self._before))]
        tensors[_IDS][:, : len(before)] = before
        tensors[_IDS][:, bucket - len(after) :] = after
        return tensors

    def _encode(self, texts: Sequence[object], truncate: bool, direction: Direction = "right") -> list[list[int]]:
        most = self.settings.max_length * _READ_CHARACTERS_PER_TOKEN
        part = slice(most) if direction == "right" else slice(-most, None)
        readable = [_check_text(number, text)[part] for number, text in enumerate(texts)]
        rows = []
        for number, encoding in enumerate(self._tokenizer.encode_batch_fast(readable)):
            ids = encoding.ids  # made anew whenever it is asked for
            if not ids:
                raise InvalidRequest(f"inputs[{number}]: the text has no tokens")
            if not truncate and (encoding.overflowing or len(readable[number]) < len(str(texts[number]))):
                raise InvalidRequest(
                    f"inputs[{number}]: the text is longer than {self.settings.max_length} tokens, and truncate is"
                    " false"
                )
            rows.append(_last_tokens(encoding) if direction == "left" and encoding.overflowing else ids)
        return rows

    def _tensors(self, rows: Sequence[list[int]]) -> Tensors:
        """The model's inputs, (rows, longest row)."""
        lengths = [*map(len, rows)]
        longest = max(lengths)
        shape = (len(rows), longest)
        tensors: Tensors = {}
        inputs = self.settings.inputs
        if min(lengths) < longest and _MASK not in inputs:
            inputs = {**inputs, _MASK: np.dtype(np.bool_)}
        for name, dtype in inputs.items():
            if name == _TYPES:
                tensors[name] = np.zeros(shape, dtype)
            elif min(lengths) == longest:
                tensors[name] = np.array(rows, dtype) if name == _IDS else np.ones(shape, dtype)
            elif name == _IDS:
                tensors[name] = np.full(shape, self.settings.pad_id, dtype)
                for row, tokens in zip(tensors[name], rows, strict=True):
                    row[: len(tokens)] = tokens
            else:
                tensors[name] = (np.arange(longest) < np.array(lengths)[:, None]).astype(dtype)
        return tensors

    def _check_ids(self, number: int, ids: object) -> list[int]:
        if not isinstance(ids, list):
            raise InvalidRequest(f"inputs[{number}]: expected a list of token ids, as before it, got {_kind(ids)}")
        if not 1 <= len(ids) <= self.settings.max_length:
            raise InvalidRequest(f"inputs[{number}]: {len(ids)} token ids, expected 1 to {self.settings.max_length}")
        for token in ids:
            if type(token) is not int or not 0 <= token < self.settings.vocabulary:
                raise InvalidRequest(
                    f"inputs[{number}]: {repr(token)[:40]} is no token id; expected a whole number from 0 to"
                    f" {self.settings.vocabulary - 1}"
                )
        return ids


class TextRows:
    """What processors of texts have in common: a row for each text, sized in tokens.

    Args:
        tokenizer: Makes the model's inputs.
    """

    bucket_invariant = True

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer

    @property
    def buckets(self) -> tuple[int, ...]:
        """Lengths that texts are padded to, tokens."""
        return self.tokenizer.settings.buckets

    def bucket(self, tensors: Tensors) -> int:
        """The padded length, tokens."""
        return self.tokenizer.bucket(tensors)

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:
        """Pad on the right, up to ``bucket`` tokens."""
        return self.tokenizer.pad(tensors, bucket)

    def lengths(self, tensors: Tensors) -> Sequence[int]:
        """Tokens of each text."""
        return self.tokenizer.lengths(tensors)

    def cut(self, tensors: Tensors, rows: Sequence[int], length: int) -> Tensors:
        """Some of the texts, cut or padded to so many tokens."""
        return self.tokenizer.cut(tensors, rows, length)

    def example(self, rows: int, bucket: int) -> Tensors:
        """Rows for warming up."""
        return self.tokenizer.example(rows, bucket)


def expect_texts(payload: Media | Texts) -> Texts:
    """Refuse pictures and sounds. Raises `UnsupportedMedia`."""
    if isinstance(payload, Media):
        came = payload.content_type[:80] or f"{len(payload.content)} bytes"
        raise UnsupportedMedia(f"this model takes text, and got {came}: send text/plain or JSON")
    return payload


def mask_of(inputs: Tensors) -> npt.NDArray[np.bool_]:
    """Where the tokens are, (rows, tokens); everywhere if the model takes no mask."""
    mask = inputs.get(_MASK)
    return np.ones(inputs[_IDS].shape, np.bool_) if mask is None else mask.astype(np.bool_)


def _special_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Those that a tokenizer puts before a text and behind it: some models look for the end of a text."""
    try:
        encoding = tokenizer.encode("a")
    except Exception:  # the library raises plain Exception, e.g. without an unknown token
        return [], []
    mask, ids = encoding.special_tokens_mask, encoding.ids
    own = [place for place, special in enumerate(mask) if not special]
    return (ids[: own[0]], ids[own[-1] + 1 :]) if own else ([], ids)


def _last_tokens(encoding: Encoding) -> list[int]:
    """The ids of a text that was cut at its beginning, made of one that was cut at its end.

    How a tokenizer truncates is part of its state, which texts of other requests share.
    """
    special = encoding.special_tokens_mask
    first = special.index(0)
    room = special.count(0)
    content: list[int] = []
    for piece in (encoding, *encoding.overflowing):
        content += [token for token, added in zip(piece.ids, piece.special_tokens_mask, strict=True) if not added]
    ids: list[int] = encoding.ids
    return [*ids[:first], *content[-room:], *ids[first + room :]]


def _check_text(number: int, text: object) -> str:
    if not isinstance(text, str):
        raise InvalidRequest(f"inputs[{number}]: expected text, got {_kind(text)}")
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"inputs[{number}]: half of a surrogate pair at character {error.start}; expected valid Unicode"
        ) from None
    return text


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _guess_tokens(text: object) -> int:
    if not isinstance(text, str):
        return len(text) if isinstance(text, list) else 1
    guess = len(text) // _CHARACTERS_PER_TOKEN + 2
    return guess if text.isascii() else 2 * guess


def _load(folder: ModelFolder) -> Tokenizer:
    path = folder.find("tokenizer.json")
    if path is None:
        raise ConfigError(("processor: there is no tokenizer.json in the model's folder",))
    try:
        return Tokenizer.from_buffer(path.read_bytes().removeprefix("\ufeff".encode()))
    except Exception as error:  # the library raises plain Exception
        raise ConfigError((f"tokenizer.json: cannot be read: {error}",)) from error


def _text_settings(
    signature: ModelSignature, folder: ModelFolder, options: TextOptions, tokenizer: Tokenizer
) -> TextSettings:
    known = {_IDS, _MASK, _TYPES}
    names = {spec.name for spec in signature.inputs}
    if (
        _IDS not in names
        or names - known
        or any(len(spec.shape) != 2 or spec.datatype not in {"INT32", "INT64"} for spec in signature.inputs)
    ):
        described = ", ".join(f"{spec.name} {describe(spec)}" for spec in signature.inputs)
        fault = (
            "processor: a text model takes integers (rows, tokens) named input_ids, and may take attention_mask and"
            f" token_type_ids; this one takes {described}"
        )
        raise ConfigError((fault,))
    fixed = next(spec.shape[1] for spec in signature.inputs if spec.name == _IDS)
    max_length = _max_length(folder, options, tokenizer, fixed)
    if max_length <= tokenizer.num_special_tokens_to_add(False):
        raise ConfigError((f"processor.max_length: {max_length} leaves no room between the special tokens",))
    if fixed > 0 and options.buckets is not None:
        raise ConfigError((f"processor.buckets: the model takes one length only, {fixed} tokens",))
    return TextSettings(
        inputs={spec.name: DTYPES[spec.datatype] for spec in signature.inputs},
        max_length=max_length,
        buckets=(fixed,) if fixed > 0 else _grid(max_length, options.buckets),
        vocabulary=tokenizer.get_vocab_size(),
        pad_id=_pad_id(folder, tokenizer),
    )


def _max_length(folder: ModelFolder, options: TextOptions, tokenizer: Tokenizer, fixed: int) -> int:
    if options.max_length is not None:
        if 0 < fixed < options.max_length:
            raise ConfigError((f"processor.max_length: {options.max_length}, but the model takes {fixed} tokens",))
        return options.max_length
    found = (
        folder.json("sentence_bert_config.json").get("max_seq_length"),
        folder.json("tokenizer_config.json").get("model_max_length"),
        (tokenizer.truncation or {}).get("max_length"),
        _DEFAULT_MAX_LENGTH,
    )
    length = next(int(value) for value in found if isinstance(value, int | float) and 0 < value <= _LONGEST_MODEL)
    return min(length, fixed) if fixed > 0 else length


def _grid(max_length: int, chosen: list[int] | None) -> tuple[int, ...]:
    if chosen is None:
        return size_classes(_SHORTEST_BUCKET, max_length)
    return (*sorted({length for length in chosen if length < max_length}), max_length)


def _pad_id(folder: ModelFolder, tokenizer: Tokenizer) -> int:
    if tokenizer.padding is not None:
        return int(tokenizer.padding["pad_id"])
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        token = folder.json(file).get("pad_token")
        if isinstance(token, dict):
            token = token.get("content")
        found = tokenizer.token_to_id(token) if isinstance(token, str) else None
        if found is not None:
            return int(found)
    named = folder.json("config.json").get("pad_token_id")
    return named if isinstance(named, int) and named >= 0 else 0
