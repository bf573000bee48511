"""Loads a folder's tokenizer as transformers would: tokenizer.json and the keys beside it.

Facts of transformers 5.24 (``tokenization_utils_tokenizers.py``, ``tokenization_bert.py``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from serve_app.errors import ConfigError
from serve_app.processors.folder_keys import FolderKey, check_keys, followed, irrelevant, keys, limited
from serve_app.processors.model_folder import SENTENCE_FILES, ModelFolder

Side: TypeAlias = Literal["left", "right"]

_LONGEST_MODEL: Final = 1_000_000
"""Hugging Face writes 1e30 for "no limit"; above this, a length is no length."""
_BERT: Final = frozenset(
    {"Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "LayoutLM", "SqueezeBert", "RetriBert", "Funnel"}
    | {"Lxmert", "MPNet", "DPRQuestionEncoder", "DPRContextEncoder", "DPRReader", "Splinter", "RealmBert"}
)
"""Tokenizer classes whose keys set BERT's normalizer and win over tokenizer.json."""
_CLASS_OF_MODEL: Final = {
    "bert": "Bert", "distilbert": "DistilBert", "electra": "Electra", "mobilebert": "MobileBert",
    "convbert": "ConvBert",
    "layoutlm": "LayoutLM", "squeezebert": "SqueezeBert", "funnel": "Funnel", "lxmert": "Lxmert", "mpnet": "MPNet",
    "megatron-bert": "Bert", "nezha": "Bert", "ernie": "Bert",
}  # fmt: skip
"""The tokenizer class of a model type, where the folder names none."""
_WORD_PIECES: Final = _BERT - {"Funnel", "MPNet"}
"""Of which those that put [CLS] and [SEP] around texts, and so can be made of their vocabulary."""
_LOWERING: Final = frozenset({"Albert", "FNet", "DebertaV2", "RemBert", "XLNet"})
"""Other classes that look at keys of the normalizer."""
_NAMED: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_DEFAULTS: Final = {name: f"[{name[:3].upper()}]" for name in ("unk_token", "sep_token", "pad_token", "cls_token")}
_FROM_PADDING: Final = frozenset(
    {"roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "data2vec-text", "mpnet"}
    | {"longformer", "ibert", "xmod", "luke", "mluke", "markuplm", "esm", "layoutlmv3", "lilt", "mra"}
)
"""Model types that number positions from behind the padding token on: the first ``pad_token_id + 1`` are never used."""
_POSITIONS: Final = ("max_position_embeddings", "n_positions", "max_seq_len")
_WITHOUT_POSITIONS: Final = frozenset({"t5", "mt5", "umt5", "longt5", "switch_transformers", "xlnet", "reformer"})
"""Model types whose positions are relative to each other: any length will do, whatever their configuration says."""

_DECODING = irrelevant("decoding only")
_SAVED = irrelevant("the state of the library when it was saved, not used when it is loaded")
KEYS: Final[Mapping[str, FolderKey]] = {
    "tokenizer_class": followed("which defaults the normalizer's keys have", str),
    "model_max_length": followed("the longest text, tokens; above a million: none", float),
    "truncation_side": followed("the end of a long text that is cut", str),
    **keys(" ".join(_NAMED), followed("a special token", str, dict)),
    "*_token": followed("special tokens of other roles", str, dict),
    "additional_special_tokens": followed("special tokens", list),
    "extra_special_tokens": followed("special tokens", list, dict),
    "model_specific_special_tokens": followed("special tokens", dict),
    "added_tokens_decoder": followed("tokens beside the vocabulary", dict),
    "add_bos_token": followed("a token before each text: it must agree with tokenizer.json", bool),
    "add_eos_token": followed("a token behind each text: it must agree with tokenizer.json", bool),
    **keys(
        "do_lower_case keep_accents",
        followed("the normalizer of BERT and its kin; of ALBERT's and its kin it must agree with tokenizer.json", bool),
    ),
    "strip_accents": followed("BERT's normalizer", bool),
    "tokenize_chinese_chars": followed("BERT's normalizer", bool),
    "add_prefix_space": followed("the space before the first word; mostly it must agree with tokenizer.json", bool),
    "split_special_tokens": followed("whether special tokens that stand in a text are text", bool),
    "padding_side": irrelevant("padding is on the right, and only where it changes no answer: that is tried"),
    "pad_token_type_id": irrelevant("as padding_side"),
    "pad_to_multiple_of": irrelevant("as padding_side"),
    "padding": _SAVED,
    "truncation": _SAVED,
    "max_length": _SAVED,
    "stride": _SAVED,
    "truncation_strategy": _SAVED,
    "clean_up_tokenization_spaces": _DECODING,
    "spaces_between_special_tokens": _DECODING,
    "decode_with_prefix_space": _DECODING,
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": _DECODING,
    "errors": _DECODING,
    "model_input_names": irrelevant("the model's file names its inputs"),
    "auto_map": limited("a tokenizer that is code of the folder", advice="save a tokenizer.json and remove the key"),
    **dict.fromkeys(("trim_offsets", "wordpieces_prefix"), irrelevant("offsets and the vocabulary only")),
    **keys(
        "remove_space do_basic_tokenize never_split split_by_punct sp_model_kwargs legacy "
        "legacy_behaviour clean_text unk_id vocab_type do_lowercase normalize _spm_precompiled_charsmap "
        "extra_ids offset mask_token_sent fix_mistral_regex fuse_unk "
        "vocab merges special_tokens_pattern token_type_ids_pattern do_clean_text emoji_file "
        "token_type_ids_include_special_tokens do_lowercase_and_remove_accent normalizer_file "
        "src_vocab_file tgt_vocab_file word_pronunciation_file word_shape_file",
        irrelevant("written into tokenizer.json when the tokenizer was made"),
    ),
    **keys(
        "name_or_path special_tokens_map_file tokenizer_file vocab_file merges_file use_fast backend is_local "
        "local_files_only processor_class from_slow init_inputs revision device_map _commit_hash "
        "tokenizer_type transformers_version verbose token cache_dir use_auth_token trust_remote_code "
        "torch_dtype dtype subfolder force_download kwargs",
        irrelevant("where and how it was loaded"),
    ),
    **dict.fromkeys(
        ("chat_template", "use_default_system_prompt", "default_system_prompt", "response_schema"),
        irrelevant("conversations only"),
    ),
    **keys(
        "cls_token_box sep_token_box pad_token_box pad_token_label only_label_first_subword entity_token_1 "
        "entity_token_2 entity_vocab max_entity_length max_mention_length max_column_id max_row_id max_depth "
        "max_width pad_width max_question_length min_question_length cell_trim_length strip_column_names "
        "update_answer_coordinates tags_dict is_uroman phonemize add_blank replace_word_delimiter_char langs "
        "image_token_id src_lang tgt_lang language language_codes task lang2id id2lang source_lang "
        "target_lang predict_timestamps dropout bos_token_id eos_token_id pad_token_id unk_token_id "
        "padding_idx vocab_size return_token_type_ids return_tensors full_tokenizer_file",
        irrelevant("other tasks only"),
    ),
}  # fmt: skip
"""Keys of tokenizer_config.json."""


TRANSFORMER_KEYS: Final[Mapping[str, FolderKey]] = {
    "max_seq_length": followed("the longest text, tokens", int),
    "do_lower_case": followed("whether letters are made small first", bool),
    "transformer_task": limited("the model's head", "feature-extraction", "sequence-classification"),
    "modality_config": irrelevant("the model's file names its outputs"),
    "module_output_name": limited("what the modules behind it read", "token_embeddings", "scores"),
    "processing_kwargs": limited("other ways to cut and pad", {}),
    **dict.fromkeys(
        ("unpad_inputs", "model_args", "config_args", "model_kwargs", "config_kwargs", "cache_dir", "backend"),
        irrelevant("how the model itself is run"),
    ),
    **dict.fromkeys(
        ("tokenizer_args", "tokenizer_kwargs", "processor_kwargs", "tokenizer_name_or_path"),
        limited(
            "another tokenizer than the folder's", {}, "", {"trust_remote_code": True}, {"trust_remote_code": False}
        ),
    ),
}
"""Keys of sentence_bert_config.json."""


def load_tokenizer(folder: ModelFolder, ignored: Collection[str]) -> Tokenizer:
    """Load it, with special tokens, normalizer and added tokens by the keys. It neither pads nor cuts.

    Raises:
        ConfigError: The tokenizer is missing or unreadable, or a key is unsupported.
    """
    config = folder.json("tokenizer_config.json")
    special = _special_tokens(folder, config)
    known = {**dict.fromkeys((key for key in config if key.endswith("_token")), KEYS["unk_token"]), **KEYS}
    check_keys("tokenizer_config.json", config, known, ignored)
    config = {key: value for key, value in config.items() if key not in ignored}
    kind, source = _class_of(folder, config)
    if folder.find("tokenizer.json") is not None:
        tokenizer = _parsed(folder)
        folder.note("tokenizer", f"tokenizer.json{f', {kind}Tokenizer' if kind else ''}", source)
        _check_class(tokenizer, kind)
    elif folder.find("vocab.txt") is not None and kind in _WORD_PIECES:
        special = {**_DEFAULTS, "mask_token": "[MASK]", **special}
        tokenizer = _word_pieces(folder, special)
        folder.note("tokenizer", f"vocab.txt, {kind}Tokenizer", source)
    else:
        advice = "AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes it"
        raise ConfigError((f"processor: there is no tokenizer.json in the model's folder; {advice}",))
    _add_tokens(tokenizer, folder, config, special)
    _set_normalizer(tokenizer, config, kind)
    _set_prefix(tokenizer, config, kind)
    _check_ends(tokenizer, config, special)
    if config.get("split_special_tokens"):
        tokenizer.encode_special_tokens = True
    _lower(tokenizer, folder, ignored)
    return tokenizer


def truncation_side(folder: ModelFolder, tokenizer: Tokenizer) -> Side:
    """The side of a long text to cut. Raises `ConfigError`."""
    side, source = folder.json("tokenizer_config.json").get("truncation_side"), "tokenizer_config.json: truncation_side"
    if side is None and tokenizer.truncation:
        side, source = tokenizer.truncation["direction"], "tokenizer.json: truncation.direction"
    if side is None:
        side, source = "right", "default"
    if side not in {"left", "right"}:
        raise ConfigError((f"{source}: must be left or right, not {str(side)[:40]!r}",))
    folder.note("long texts are cut at the", "beginning" if side == "left" else "end", source)
    return "left" if side == "left" else "right"


def padding_id(folder: ModelFolder, tokenizer: Tokenizer) -> int:
    """The padding token: by name from the tokenizer's files, else by number from config.json, else 0."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        token = _content(folder.json(file).get("pad_token"))
        found = None if token is None else tokenizer.token_to_id(token)
        if found is not None:
            folder.note("padding", f"{token} ({found})", f"{file}: pad_token")
            return int(found)
    if tokenizer.padding is not None:
        folder.note("padding", tokenizer.padding["pad_token"], "tokenizer.json: padding")
        return int(tokenizer.padding["pad_id"])
    named = folder.json("config.json").get("pad_token_id")
    known = isinstance(named, int) and named >= 0
    folder.note("padding", named if known else 0, "config.json: pad_token_id" if known else "default")
    return int(named) if known and isinstance(named, int) else 0


def positions(folder: ModelFolder) -> tuple[int, str] | None:
    """The most tokens with positions, and the key of that limit, if any."""
    config = folder.json("config.json")
    if str(config.get("model_type")) in _WITHOUT_POSITIONS:
        return None
    for key in _POSITIONS:
        size = config.get(key)
        if isinstance(size, int) and not isinstance(size, bool) and 0 < size <= _LONGEST_MODEL:
            return size - first_position(folder), f"config.json: {key}"
    return None


def first_position(folder: ModelFolder) -> int:
    """The number of a text's first position: after padding's in RoBERTa and similar models."""
    config = folder.json("config.json")
    if str(config.get("model_type")) not in _FROM_PADDING:
        return 0
    padding = config.get("pad_token_id", 1)
    return (padding if isinstance(padding, int) else 1) + 1


def longest_text(folder: ModelFolder, tokenizer: Tokenizer) -> list[tuple[int, str]]:
    """The files' limits of text length, tokens, with their sources. The smallest counts."""
    config = folder.json("tokenizer_config.json")
    file, sentence = folder.first(SENTENCE_FILES)
    if (sentence.get("max_seq_length") or 1) < 1:
        raise ConfigError((f"{file}: max_seq_length: must be above 0, not {sentence['max_seq_length']}",))
    found: list[tuple[Any, str]] = [(config.get("model_max_length"), "tokenizer_config.json: model_max_length")]
    if sentence.get("max_seq_length") is not None:
        found = [(sentence["max_seq_length"], f"{file}: max_seq_length")]
    # What the library leaves behind in tokenizer.json it does not look at when it loads it.
    if folder.find("tokenizer_config.json") is None:
        found.append(((tokenizer.truncation or {}).get("max_length"), "tokenizer.json: truncation.max_length"))
    lengths = [
        (int(value), source)
        for value, source in found
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _LONGEST_MODEL
    ]
    limit = positions(folder)
    return lengths if limit is None else [*lengths, limit]


def has_lowercase(normalizer: Any) -> bool:
    """Whether the library's normalizer, or a missing one, lowercases."""
    return normalizer is not None and "A" not in normalizer.normalize_str("A")


def _class_of(folder: ModelFolder, config: Mapping[str, Any]) -> tuple[str, str]:
    """Name of the tokenizer's class without its suffix, and its source; empty if unnamed."""
    named = config.get("tokenizer_class") or folder.json("config.json").get("tokenizer_class")
    if isinstance(named, str):
        name = named.removesuffix("Fast").removesuffix("Tokenizer")
        return name, "tokenizer_config.json: tokenizer_class"
    kind = folder.json("config.json").get("model_type")
    found = _CLASS_OF_MODEL.get(str(kind), "")
    return found, f"config.json: model_type {kind}" if found else "default"


def _parsed(folder: ModelFolder) -> Tokenizer:
    try:
        return Tokenizer.from_str(folder.text("tokenizer.json"))
    except ConfigError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise ConfigError((f"tokenizer.json: cannot be read: {error}",)) from error


def _check_class(tokenizer: Tokenizer, kind: str) -> None:
    """Refuse parts that BERT-like tokenizers would replace: transformers 5 makes them anew."""
    parts = (
        (tokenizer.normalizer, normalizers.BertNormalizer),
        (tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer),
    )
    for part, usual in parts if kind in _BERT else ():
        if not isinstance(part, usual) and usual.__name__ not in repr(part):
            fault = f"tokenizer.json: {kind}Tokenizer would have {usual.__name__} in place of {type(part).__name__}"
            raise ConfigError((f"{fault}; if that is right, say tokenizer_class: PreTrainedTokenizerFast",))


def _word_pieces(folder: ModelFolder, special: Mapping[str, str]) -> Tokenizer:
    """BERT's tokenizer from its vocabulary, one token a line."""
    lines = folder.text("vocab.txt").split("\n")
    if not lines[-1]:
        lines.pop()
    vocabulary = {token.removesuffix("\r"): number for number, token in enumerate(lines)}
    unknown, first, last = (special[name] for name in ("unk_token", "cls_token", "sep_token"))
    missing = [token for token in (unknown, first, last) if token not in vocabulary]
    if missing:
        raise ConfigError((f"vocab.txt: holds no {' and no '.join(missing)}, which its tokenizer needs",))
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        special_tokens=[(first, vocabulary[first]), (last, vocabulary[last])],
    )
    return tokenizer


def _special_tokens(folder: ModelFolder, config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by role: transformers 5 treats all keys of this form as such."""
    given = {**folder.json("special_tokens_map.json"), **config}
    found = {key: _content(value) for key, value in given.items() if key.endswith("_token") and key != "use_auth_token"}
    return {name: token for name, token in found.items() if token is not None}


def _add_tokens(
    tokenizer: Tokenizer, folder: ModelFolder, config: Mapping[str, Any], special: Mapping[str, str]
) -> None:
    """Add tokens of the files missing in tokenizer.json, like the library: after the vocabulary, by id."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    described = config.get("added_tokens_decoder") or {}
    numbered: dict[str, int] = {}
    try:
        for number, entry in sorted(described.items(), key=lambda item: int(item[0])):
            numbered[entry["content"]] = int(number)
            if entry["content"] not in known:
                token = AddedToken(**{key: value for key, value in entry.items() if key != "special"})
                (tokenizer.add_special_tokens if entry.get("special") else tokenizer.add_tokens)([token])
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError((f"tokenizer_config.json: added_tokens_decoder: cannot be understood: {error}",)) from error
    others = folder.json("special_tokens_map.json")
    named = [token for token in special.values() if token not in known]
    listed = [token for token in (*_more(config), *_more(others)) if token not in known]
    unknown = [token for token in listed if tokenizer.token_to_id(token) is None and token not in named]
    if unknown:
        fault = f"additional_special_tokens: {unknown[0]!r} has no id in tokenizer.json; save the tokenizer again"
        raise ConfigError((f"{'tokenizer_config' if others == {} else 'special_tokens_map'}.json: {fault}",))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (*named, *listed)])
    file = "tokenizer_config.json: added_tokens_decoder" if numbered else "added_tokens.json"
    for content, wanted in (numbered or folder.json(file)).items():
        if tokenizer.token_to_id(content) != wanted:
            fault = f"{file}: {content!r} is {wanted}, and {tokenizer.token_to_id(content)} by the other files"
            raise ConfigError((f"{fault}; save the tokenizer again",))


def _more(config: Mapping[str, Any]) -> Iterator[str]:
    for name in ("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"):
        tokens = config.get(name) or ()
        for token in tokens.values() if isinstance(tokens, dict) else tokens if isinstance(tokens, list) else ():
            content = _content(token)
            if content is not None:
                yield content


def _set_normalizer(tokenizer: Tokenizer, config: Mapping[str, Any], kind: str) -> None:
    named = config.get("do_lower_case")
    if isinstance(tokenizer.normalizer, normalizers.BertNormalizer) and (kind in _BERT or not kind):
        state = json.loads(tokenizer.normalizer.__getstate__())
        defaults = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
        # The class's defaults count too, and win over tokenizer.json; of other classes only keys that are there.
        given = {key: config.get(key, default) for key, default in defaults.items() if kind in _BERT or key in config}
        tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=state["clean_text"],
            handle_chinese_chars=bool(given.get("tokenize_chinese_chars", state["handle_chinese_chars"])),
            strip_accents=given.get("strip_accents", state["strip_accents"]),
            lowercase=bool(given.get("do_lower_case", state["lowercase"])),
        )
    elif kind in _LOWERING:
        normalizer = tokenizer.normalizer
        strips = normalizer is not None and "e" in normalizer.normalize_str("\u00e9")
        for key, wanted, found in (
            ("do_lower_case", named, has_lowercase(normalizer)),
            ("keep_accents", config.get("keep_accents"), not strips),
        ):
            if wanted is not None and wanted != found:
                fault = f"tokenizer_config.json: {key}: {wanted}, but tokenizer.json has it {str(found).lower()}"
                raise ConfigError((f"{fault}; save the tokenizer again, or list {key} in processor.ignore_keys",))


def _lower(tokenizer: Tokenizer, folder: ModelFolder, ignored: Collection[str]) -> None:
    """Lowercase first, if sentence-transformers would."""
    file, config = folder.first(SENTENCE_FILES)
    check_keys(file, config, TRANSFORMER_KEYS, ignored)
    if config.get("do_lower_case") and not has_lowercase(tokenizer.normalizer):
        before = tokenizer.normalizer
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *([] if before is None else [before])])
        folder.note("letters", "made small", f"{file}: do_lower_case")


def _set_prefix(tokenizer: Tokenizer, config: Mapping[str, Any], kind: str) -> None:
    """Set a byte-level tokenizer's space before the first word; others must agree already."""
    wanted, before = config.get("add_prefix_space"), tokenizer.pre_tokenizer
    if wanted is None or before is None or kind.startswith("PreTrained"):
        return
    if isinstance(before, pre_tokenizers.ByteLevel):
        before.add_prefix_space = wanted
        tokenizer.pre_tokenizer = before
        return
    words = [word for word, _ in before.pre_tokenize_str("a")]
    if (words != ["a"]) != wanted:
        fault = f"tokenizer_config.json: add_prefix_space: {wanted}, but tokenizer.json makes {words[0]!r} of 'a'"
        raise ConfigError((f"{fault}; save the tokenizer again, or list the key in processor.ignore_keys",))


def _check_ends(tokenizer: Tokenizer, config: Mapping[str, Any], special: Mapping[str, str]) -> None:
    """Refuse keys for surrounding tokens that contradict tokenizer.json.

    Transformers 4 follows the keys for some classes, and 5 follows tokenizer.json.
    """
    around = {tokenizer.id_to_token(token) for token in tokenizer.encode("").ids}
    if around - {special.get("bos_token"), special.get("eos_token")}:
        return  # BERT's, RoBERTa's and their kin: no release looks at these keys
    for key in ("add_bos_token", "add_eos_token"):
        wanted, token = config.get(key), special.get(key[4:])
        if isinstance(wanted, bool) and wanted != (token in around):
            does = "adds it" if token in around else "adds none"
            fault = (
                f"tokenizer_config.json: {key}: {wanted}, but tokenizer.json {does}; save the tokenizer again, or list"
            )
            raise ConfigError((f"{fault} {key} in processor.ignore_keys to follow tokenizer.json",))


def _content(token: Any) -> str | None:
    """The text of a token, in files a text or an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None
