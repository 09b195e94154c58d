"""Record: the base class of all values on disk and on the wire."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """An immutable pydantic model that rejects unknown keys. The docstring under a field is its documentation.

    JSON has no infinity: `inf` and `nan` are written as strings, which are read back as floats.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="strings")

    def __contains__(self, item: object) -> bool:
        """Raise TypeError: pydantic would look for `item` in the pairs of names and values, and never find it."""
        fields = ", ".join(type(self).model_fields)
        raise TypeError(
            f"'{type(self).__name__}' object holds nothing that `in` finds; name one of its fields: {fields}"
        )

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed.

        Raise AttributeError for an unknown field; values are not validated.
        """
        unknown = changes.keys() - type(self).model_fields.keys()
        if unknown:
            raise AttributeError(f"{type(self).__name__} has no field {min(unknown)!r}")
        return self.model_copy(update=changes)
