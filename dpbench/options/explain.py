"""The options of `dpbench explain`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, model_validator

from dpbench.options.bridge import option, option_name
from dpbench.options.script import ScriptOptions
from dpbench.options.shared import RowFilter, json_option, printed, refuse_if, results_argument
from dpbench.options.types import FilePath

Words = Annotated[tuple[str, ...], BeforeValidator(tuple)]


class ExplainOptions(ScriptOptions, RowFilter):
    """A training script to measure, or the rows of a sweep; and how much to print."""

    folder: FilePath | None = results_argument(
        "Results folder of a sweep, or a training script to measure.", "DIR|SCRIPT"
    )
    arguments: Words = option(
        (), "Arguments of the script.", "ARGUMENTS", argument=True, repeated=True
    )
    module: bool = option(
        False, "The script is a module, as in python -m.", names=("--module",), also=("-m",)
    )
    as_json: bool = json_option("Print one JSON object with all rows.")
    verbose: bool = printed(
        "Also print the phases of a step and how to read the numbers.", "--verbose", "-v"
    )

    @property
    def script(self) -> tuple[str, ...]:
        """The script and its arguments; () to explain a results folder."""
        if self.folder is None or not (self.module or self.folder.suffix == ".py"):
            return ()
        return (*("-m",) * self.module, str(self.folder), *self.arguments)

    @model_validator(mode="after")
    def _go_together(self) -> ExplainOptions:
        """Raises UsageError for options that have no effect."""
        given = self.model_fields_set
        refuse_if(self.module and self.folder is None, "-m: expected the name of a module")
        own = ScriptOptions if not self.script else RowFilter
        for name in own.model_fields:
            if name in given:
                shown = option_name(type(self), name)
                refuse_if(
                    not self.script,
                    f"{shown}: it is for measuring a script, as in dpbench explain {shown} … "
                    "train.py; a results folder is measured already",
                    name,
                )
                refuse_if(
                    bool(self.script),
                    f"{shown}: a script has no rows to choose from; for a results folder, name it "
                    "in place of the script",
                    name,
                )
        refuse_if(
            bool(self.arguments) and not self.script,
            f"unexpected argument {self.arguments[0] if self.arguments else ''}; after a results "
            "folder there are options only",
            "arguments",
        )
        return self
