"""Docstrings of fields are what their schema says about them."""

from __future__ import annotations

from pydantic import Field, create_model

from serve_app.config.values import Section


class _Base(Section):
    inherited: int = 1
    """Of the base."""

    renamed: int = Field(default=1, alias="other")
    """Over

    two paragraphs.
    """

    told: int = Field(default=1, description="Told.")
    """Not this."""

    silent: int = 1


class _Changed(_Base):
    inherited: int = 2
    """Of the class itself."""


def _descriptions(section: type[Section]) -> dict[str, str | None]:
    return {name: shown.get("description") for name, shown in section.model_json_schema()["properties"].items()}


def test_fields_are_described() -> None:
    """By the name that they have in a file; what the field itself says comes first."""
    described = {"inherited": "Of the base.", "other": "Over\n\ntwo paragraphs.", "told": "Told.", "silent": None}
    assert _descriptions(_Base) == described
    assert _descriptions(_Changed) == described | {"inherited": "Of the class itself."}


def test_classes_without_source_have_what_their_bases_say() -> None:
    """One that is made from others."""
    made = create_model("made", __base__=_Base, added=(int, 1))
    assert _descriptions(made)["inherited"] == "Of the base."
    assert _descriptions(made)["added"] is None


def test_classes_may_be_in_functions() -> None:
    """As small plugins have them."""

    class Inner(Section):
        size: int = 1
        """Of something."""

    assert _descriptions(Inner) == {"size": "Of something."}
