"""A live table in a notebook: one display that is drawn again, and stays as the record of the run when it is over."""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib import import_module

from rich.console import Console, RenderableType

WIDTH = 110
FORMAT = '<pre style="white-space:pre;overflow-x:auto;line-height:normal;font-family:monospace">{code}</pre>'


def forms_of(content: RenderableType) -> dict[str, str]:
    """The same as a web page shows it, and as text."""
    console = Console(file=io.StringIO(), record=True, width=WIDTH, force_jupyter=False, force_terminal=True)
    console.print(content)
    page = console.export_html(inline_styles=True, code_format=FORMAT, clear=False)
    return {"text/html": page, "text/plain": console.export_text()}


def display(first: RenderableType) -> Callable[[RenderableType], None]:
    """Show it below the present cell. Returns what shows something else in its place."""
    handle = import_module("IPython.display").display(forms_of(first), raw=True, display_id=True)
    return lambda content: handle.update(forms_of(content), raw=True)
