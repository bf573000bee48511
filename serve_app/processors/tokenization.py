"""Tokenizes texts, and makes a transformer's tensors from token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from serve_app.config.processor import TextOptions
from serve_app.domain.facts import ASSUMED
from serve_app.errors import ConfigError, InvalidRequest, UnsupportedMedia
from serve_app.payloads import DTYPES, Media, ModelSignature, Tensors, Texts
from serve_app.processors.buckets import bucket_for, bucket_of, size_classes, widen
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.ranking import describe
from serve_app.processors.tokenizer_files import (
    Side,
    first_position,
    load_tokenizer,
    longest_text,
    padding_id,
    positions,
    truncation_side,
)

Text: TypeAlias = str | Sequence[str]
"""A text, or a pair of texts that a model compares."""

_DEFAULT_MAX_LENGTH = 512
_SHORTEST_BUCKET = 8
_CHARACTERS_PER_TOKEN = 4
"""English in subword vocabularies; other scripts need about twice the tokens."""
_READ_CHARACTERS_PER_TOKEN = 128
"""A text is cut to this many characters per token of the maximum before it is tokenized: truncation would throw the
rest away, after the work was done."""

_OWN_IDS = (
    "ids must come from this model's tokenizer; LangChain:"
    " OpenAIEmbeddings(check_embedding_ctx_length=False) sends texts"
)
_MASK = "attention_mask"
_TYPES = "token_type_ids"
_IDS = "input_ids"
_PLACES = "position_ids"


@dataclass(frozen=True, slots=True)
class TextSettings:
    """How texts become tensors.

    Attributes:
        inputs: Dtype of each input.
        max_length: Tokens; longer texts are cut.
        buckets: Padded lengths, tokens, ascending. The last is ``max_length``.
        side: Default side to cut.
        known: Token ids from here on are unknown to the model, though not to the tokenizer; ``None``: all are known.
        first_position: Number of a text's first position, for models with positions.
    """

    inputs: dict[str, np.dtype[Any]]
    max_length: int
    buckets: tuple[int, ...]
    vocabulary: int
    pad_id: int
    side: Side = "right"
    first_position: int = 0
    known: int | None = None
    takes_ids: bool = True


class TextTokenizer:
    """Makes the tensors of texts. Thread-safe: the tokenizer does not change after construction.

    Batches are tokenized in parallel, without Python's lock; the operator can limit that with
    ``TOKENIZERS_PARALLELISM=false`` and ``RAYON_NUM_THREADS``.

    Args:
        tokenizer: Truncates to ``settings.max_length`` at ``settings.side``, and does not pad.
    """

    def __init__(self, tokenizer: Tokenizer, settings: TextSettings) -> None:
        self._tokenizer = tokenizer
        self.settings = settings
        self._typed = _TYPES in settings.inputs and any(tokenizer.encode("a").type_ids)
        self._before, self._after = _special_tokens(tokenizer)

    @classmethod
    def create(
        cls,
        signature: ModelSignature,
        folder: ModelFolder,
        options: TextOptions,
        strategy: Literal["longest_first", "only_first"] = "longest_first",
    ) -> TextTokenizer:
        """Load the folder's tokenizer and fit it to the model.

        Args:
            strategy: Which text of a long pair is cut.

        Raises:
            ConfigError: They do not match, or a file is missing or unsupported.
        """
        tokenizer = load_tokenizer(folder, options.ignore_keys)
        settings = _text_settings(signature, folder, options, tokenizer)
        tokenizer.no_padding()
        tokenizer.enable_truncation(settings.max_length, strategy=strategy, direction=settings.side)
        return cls(tokenizer, settings)

    def prompt_length(self, prompt: str) -> int:
        """Tokens of a prompt before a text, including leading special tokens.

        Counted like sentence-transformers: of the prompt alone, without a special token at its end.
        """
        encoding = self._tokenizer.encode(prompt)
        last = bool(encoding.special_tokens_mask) and encoding.special_tokens_mask[-1] == 1
        return len(encoding.ids) - int(last)

    def estimate(self, texts: Sequence[Text] | Sequence[Sequence[int]]) -> int:
        """Estimate the bucket without tokenizing: the mean of several texts, since each runs at its own length."""
        longest = self.settings.max_length
        tokens = [min(_guess_tokens(text), longest) for text in texts]
        return bucket_for(-(-sum(tokens) // max(1, len(tokens))), self.settings.buckets)

    def tokenize(
        self, texts: Sequence[Text] | list[list[int]], truncate: bool = True, side: Side | None = None
    ) -> Tensors:
        """Tokenize texts, or check token ids, to which no special tokens are added.

        Args:
            texts: At least one: all texts or pairs, or all token ids.
            truncate: Whether long texts are cut. Ids are never cut: their tokenizer does that.
            side: Side to cut; ``None``: the folder's.

        Returns:
            The model's inputs, (texts, longest text), padded on the right. If lengths differ, there is a mask even if
            the model takes none: `cut` and `pad` make the final inputs.

        Raises:
            InvalidRequest: A text is no text, holds half a surrogate pair, has no tokens, or is too long; or an id is
                not in the vocabulary. Names it.
        """
        if not texts:
            raise InvalidRequest("inputs: at least one text is expected, and none came")
        if is_ids(texts[0]):
            return self._tensors([self._check_ids(number, ids) for number, ids in enumerate(texts)])
        return self._tensors(*self._encode(texts, truncate, side or self.settings.side))

    def count(self, texts: Sequence[Text] | list[list[int]]) -> int:
        """The number of tokens, including special ones. Raises what `tokenize` raises."""
        if texts and not is_ids(texts[0]):
            return sum(map(len, self._encode(texts, True, self.settings.side)[0]))
        return sum(len(self._check_ids(number, ids)) for number, ids in enumerate(texts))

    def bucket(self, tensors: Tensors) -> int:
        """The padded length, tokens. Raises `InvalidRequest` beyond ``max_length``."""
        return bucket_of(tensors, self.settings.inputs, self.settings.buckets, "tokens")

    def lengths(self, tensors: Tensors) -> Sequence[int]:
        """Tokens of each text."""
        mask = tensors.get(_MASK)
        if mask is None:  # all are as long
            rows, length = tensors[_IDS].shape
            return [length] * rows
        return [int(length) for length in np.count_nonzero(mask, axis=1)]

    def cut(self, tensors: Tensors, rows: Sequence[int], length: int) -> Tensors:
        """Select texts, cut or padded to a number of tokens."""
        return self.pad({name: tensor[rows, :length] for name, tensor in tensors.items()}, length)

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:
        """Pad on the right, up to ``bucket`` tokens."""
        return {
            name: widen(tensors[name], bucket, self._padding(name)) for name in self.settings.inputs if name in tensors
        }

    def _padding(self, name: str) -> int:
        return self.settings.pad_id if name == _IDS else 0

    def example(self, rows: int, bucket: int) -> Tensors:
        """Rows of padding between special tokens, marked as text, for warm-up."""
        values = {_IDS: self.settings.pad_id, _MASK: 1, _TYPES: 0, _PLACES: 0}
        tensors = {name: np.full((rows, bucket), values[name], dtype) for name, dtype in self.settings.inputs.items()}
        if _PLACES in tensors:
            tensors[_PLACES][:] = np.arange(bucket) + self.settings.first_position
        before, after = self._before[:bucket], self._after[: max(0, bucket - len(self._before))]
        tensors[_IDS][:, : len(before)] = before
        tensors[_IDS][:, bucket - len(after) :] = after
        return tensors

    def _encode(
        self, texts: Sequence[object], truncate: bool, side: Side
    ) -> tuple[list[list[int]], list[list[int]] | None]:
        """Token ids of each text, and their types if the model takes types and not all are 0."""
        given = [_check_text(number, text) for number, text in enumerate(texts)]
        pairs = tuple in map(type, given)
        most = self.settings.max_length * _READ_CHARACTERS_PER_TOKEN
        read = given
        if pairs or max(map(len, given)) > most:
            part = slice(most) if side == "right" else slice(-most, None)
            read = [text[part] if isinstance(text, str) else tuple(each[part] for each in text) for text in given]
        try:
            encodings = self._tokenizer.encode_batch_fast(read)
        except Exception as error:  # the library raises plain Exception
            if "Truncation" not in str(error):
                raise
            problem = f"inputs: the second text of a pair leaves no room in {self.settings.max_length} tokens"
            raise InvalidRequest(problem) from None
        for number, (text, cut) in enumerate(zip(given, read, strict=True)) if read is not given else ():
            if cut != text and not encodings[number].overflowing:  # tokens of very many characters: the rest counts too
                encodings[number] = self._tokenizer.encode(*((text,) if isinstance(text, str) else text))
        typed = self._typed or (pairs and _TYPES in self.settings.inputs)
        known = self.settings.known
        rows, types = [], []
        for number, encoding in enumerate(encodings):
            ids = encoding.ids  # made anew whenever it is asked for
            if not ids:
                raise InvalidRequest(f"inputs[{number}]: the text has no tokens")
            if not truncate and encoding.overflowing:
                raise InvalidRequest(
                    f"inputs[{number}]: the text is longer than {self.settings.max_length} tokens, and truncate is"
                    " false"
                )
            if known is not None and max(ids) >= known:
                token = self._tokenizer.id_to_token(max(ids))
                raise InvalidRequest(f"inputs[{number}]: the model does not know the token {token!r}")
            rows.append(_cut_otherwise(encoding, side) if side != self.settings.side and encoding.overflowing else ids)
            if typed:
                types.append(encoding.type_ids)
        return rows, types if typed else None

    def _tensors(self, rows: Sequence[list[int]], types: Sequence[list[int]] | None = None) -> Tensors:
        """The model's inputs, (rows, longest row)."""
        lengths = [*map(len, rows)]
        longest = max(lengths)
        shape = (len(rows), longest)
        tensors: Tensors = {}
        inputs = self.settings.inputs
        if min(lengths) < longest and _MASK not in inputs:
            inputs = {**inputs, _MASK: np.dtype(np.bool_)}
        for name, dtype in inputs.items():
            if name == _PLACES:
                places = np.arange(longest) + self.settings.first_position
                tensors[name] = np.ascontiguousarray(np.broadcast_to(places.astype(dtype), shape))
            elif name == _MASK and min(lengths) == longest:
                tensors[name] = np.ones(shape, dtype)
            elif name == _MASK:
                tensors[name] = (np.arange(longest) < np.array(lengths)[:, None]).astype(dtype)
            elif name == _TYPES and types is None:
                tensors[name] = np.zeros(shape, dtype)
            else:
                values = rows if name == _IDS or types is None else types
                if min(lengths) == longest:
                    tensors[name] = np.array(values, dtype)
                else:
                    tensors[name] = np.full(shape, self._padding(name), dtype)
                    for row, tokens in zip(tensors[name], values, strict=True):
                        row[: len(tokens)] = tokens
        return tensors

    def _check_ids(self, number: int, ids: object) -> list[int]:
        if not isinstance(ids, list):
            raise InvalidRequest(f"inputs[{number}]: expected a list of token ids, as before it, got {_kind(ids)}")
        if not self.settings.takes_ids:
            raise InvalidRequest(f"inputs[{number}]: this model takes no token ids: send texts; {_OWN_IDS}")
        if not 1 <= len(ids) <= self.settings.max_length:
            raise InvalidRequest(f"inputs[{number}]: {len(ids)} token ids, expected 1 to {self.settings.max_length}")
        for token in ids:
            if type(token) is not int or not 0 <= token < self.settings.vocabulary:
                raise InvalidRequest(
                    f"inputs[{number}]: {repr(token)[:40]} is no token id; expected a whole number from 0 to"
                    f" {self.settings.vocabulary - 1}; {_OWN_IDS}"
                )
        return ids


class TextRows:
    """Base of text processors: one row for each text, sized in tokens."""

    bucket_invariant = True

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer

    @property
    def buckets(self) -> tuple[int, ...]:
        """Padded lengths, tokens."""
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
        """Select texts, cut or padded to a number of tokens."""
        return self.tokenizer.cut(tensors, rows, length)

    def example(self, rows: int, bucket: int) -> Tensors:
        """Rows for warm-up."""
        return self.tokenizer.example(rows, bucket)


def expect_texts(payload: Media | Texts) -> Texts:
    """Refuse images and audio. Raises `UnsupportedMedia`."""
    if isinstance(payload, Media):
        came = payload.content_type[:80] or f"{len(payload.content)} bytes"
        raise UnsupportedMedia(f"this model takes text, and got {came}: send text/plain or JSON")
    return payload


def mask_of(inputs: Tensors) -> npt.NDArray[np.bool_]:
    """Marks tokens, (rows, tokens); everywhere if the model takes no mask."""
    mask = inputs.get(_MASK)
    return np.ones(inputs[_IDS].shape, np.bool_) if mask is None else mask.astype(np.bool_)


def _special_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens before and after a text: some models look for its end."""
    try:
        encoding = tokenizer.encode("a")
    except Exception:  # the library raises plain Exception, e.g. without an unknown token
        return [], []
    mask, ids = encoding.special_tokens_mask, encoding.ids
    own = [place for place, special in enumerate(mask) if not special]
    return (ids[: own[0]], ids[own[-1] + 1 :]) if own else ([], ids)


def _cut_otherwise(encoding: Encoding, side: Side) -> list[int]:
    """The ids of a text cut at one end, converted to a cut at the other.

    Truncation is part of a tokenizer's state, which other requests share.
    """
    special = encoding.special_tokens_mask
    first, room = special.index(0), special.count(0)
    pieces = (encoding, *encoding.overflowing)
    content: list[int] = []
    for piece in pieces if side == "left" else reversed(pieces):
        content += [token for token, added in zip(piece.ids, piece.special_tokens_mask, strict=True) if not added]
    ids: list[int] = encoding.ids
    kept = content[-room:] if side == "left" else content[:room]
    return [*ids[:first], *kept, *ids[first + room :]]


def is_ids(text: object) -> bool:
    """Whether it is a list of token ids, not a text or a pair."""
    return isinstance(text, list) and not any(isinstance(part, str) for part in text)


def _check_text(number: int, text: object) -> Any:
    """The text or pair in the tokenizer's form."""
    if not isinstance(text, str):
        if not isinstance(text, list):
            raise InvalidRequest(f"inputs[{number}]: expected text, got {_kind(text)}")
        if len(text) != 2 or not all(isinstance(part, str) for part in text):
            raise InvalidRequest(f"inputs[{number}]: expected a text or a pair of two texts, as before it")
        return tuple(_check_text(number, part) for part in text)
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
        return sum(map(_guess_tokens, text)) if not is_ids(text) and isinstance(text, list) else _count_ids(text)
    guess = len(text) // _CHARACTERS_PER_TOKEN + 2
    return guess if text.isascii() else 2 * guess


def _count_ids(text: object) -> int:
    return len(text) if isinstance(text, list) else 1


def _text_settings(
    signature: ModelSignature, folder: ModelFolder, options: TextOptions, tokenizer: Tokenizer
) -> TextSettings:
    known = {_IDS, _MASK, _TYPES, _PLACES}
    names = {spec.name for spec in signature.inputs}
    if (
        _IDS not in names
        or names - known
        or any(len(spec.shape) != 2 or spec.datatype not in {"INT32", "INT64"} for spec in signature.inputs)
    ):
        described = ", ".join(f"{spec.name} {describe(spec)}" for spec in signature.inputs)
        fault = (
            "processor: a text model takes integers (rows, tokens) named input_ids, and may take attention_mask,"
            f" token_type_ids and position_ids; this one takes {described}"
        )
        raise ConfigError((fault,))
    fixed = next(spec.shape[1] for spec in signature.inputs if spec.name == _IDS)
    max_length = _max_length(folder, options, tokenizer, fixed)
    if max_length <= tokenizer.num_special_tokens_to_add(False):
        raise ConfigError((f"processor.max_length: {max_length} leaves no room between the special tokens",))
    if fixed > 0 and options.buckets is not None:
        raise ConfigError((f"processor.buckets: the model takes one length only, {fixed} tokens",))
    if _MASK in signature.ends.unused:
        folder.warn("the model's file", "takes attention_mask and does not read it: padding would be text to it")
    vocabulary = folder.json("config.json").get("vocab_size")
    if isinstance(vocabulary, int) and tokenizer.get_vocab_size() > vocabulary:
        found = f"{tokenizer.get_vocab_size()} tokens, but config.json: vocab_size is {vocabulary}"
        folder.warn("tokenizer.json", f"{found}: texts that need the others are refused")
    types = folder.json("config.json").get("type_vocab_size")
    if _TYPES not in names and isinstance(types, int) and types > 1 and any(tokenizer.encode("a", "b").type_ids):
        folder.warn("the model's file", "takes no token_type_ids: it may not tell the two texts of a pair apart")
    return TextSettings(
        inputs={spec.name: DTYPES[spec.datatype] for spec in signature.inputs},
        max_length=max_length,
        buckets=(fixed,) if fixed > 0 else _grid(max_length, options.buckets),
        vocabulary=tokenizer.get_vocab_size(),
        pad_id=padding_id(folder, tokenizer),
        side=truncation_side(folder, tokenizer),
        first_position=first_position(folder),
        known=vocabulary if isinstance(vocabulary, int) and vocabulary < tokenizer.get_vocab_size() else None,
        takes_ids=options.token_ids != "refuse",  # noqa: S105 - no such token
    )


def _max_length(folder: ModelFolder, options: TextOptions, tokenizer: Tokenizer, fixed: int) -> int:
    """The longest text, tokens: the option's length, or the smallest limit of a file. Raises `ConfigError`."""
    said = longest_text(folder, tokenizer)
    if options.max_length is not None:
        limit = positions(folder)
        if 0 < fixed < options.max_length:
            raise ConfigError((f"processor.max_length: {options.max_length}, but the model takes {fixed} tokens",))
        if limit is not None and limit[0] < options.max_length:
            fault = f"processor.max_length: {options.max_length}, but {limit[1]} leaves room for {limit[0]} tokens"
            raise ConfigError((fault,))
        said = [(options.max_length, "processor.max_length")]
    elif fixed > 0:
        said.append((fixed, "the model's file"))
    length, source = min(said, default=(_DEFAULT_MAX_LENGTH, ASSUMED))
    limit = positions(folder)
    for other, file in said:
        if limit == (length, source) and other > length:
            folder.warn(file, f"{other} tokens, but {source} leaves room for {length}: longer texts are cut there")
    folder.note("max length", f"{length} tokens, longer texts are cut", source)
    return length


def _grid(max_length: int, chosen: list[int] | None) -> tuple[int, ...]:
    if chosen is None:
        return size_classes(_SHORTEST_BUCKET, max_length)
    return (*sorted({length for length in chosen if length < max_length}), max_length)
