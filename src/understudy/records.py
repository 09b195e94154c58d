"""Record: what every value on disk or on the wire is made of. Frozen, and strict about its keys."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """An immutable value. An unknown key is an error; the docstring under a field is its documentation."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed. Values are taken as they are: the caller vouches for their types."""
        unknown = changes.keys() - type(self).model_fields.keys()
        if unknown:
            raise AttributeError(f"{type(self).__name__} has no field {min(unknown)!r}")
        return self.model_copy(update=changes)
