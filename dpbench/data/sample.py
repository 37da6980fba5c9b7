"""What a sample of a dataset looks like, as it is known before anything is read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleTraits:
    """The inputs of a sample, and its target."""

    shape: tuple[int, ...] | None
    """Of the inputs. None: a sequence of tokens as long as the architecture's, and as many targets;
    else there is one target."""
    dtype: str
    """Of the inputs, as torch names it."""
    classes: int | None
    """Of which a target, int64, is one; None: it is a number, float32."""

    @property
    def target_dtype(self) -> str:
        """As torch names it."""
        return "float32" if self.classes is None else "int64"

    def __str__(self) -> str:
        inputs = "a sequence of" if self.shape is None else shape_in_words(self.shape)
        target = "as many" if self.shape is None else "one"
        classes = "" if self.classes is None else f" of {self.classes} classes"
        return f"{inputs} {self.dtype} with {target} {self.target_dtype}{classes}"


def shape_in_words(shape: tuple[int, ...]) -> str:
    """Such as 1×28×28, 30 or one."""
    return "×".join(map(str, shape)) or "one"
