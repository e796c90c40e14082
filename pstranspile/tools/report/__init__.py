"""Pages that a browser shows: a compiled job with its plan, programs, graph and run; and differences.

Python takes the contents of a page from `explain`, the plan, the recorder of a run and `check`, and puts them into the
page as JSON. The scripts and the style in this folder draw it. A page is one file that loads nothing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib import resources
from typing import Any

REPORT = (
    "core", "model", "list", "cluster", "plan", "explanation", "programs", "layout", "graph", "run", "chart", "main",
)  # fmt: skip
"""The scripts of a report, in order."""

DIFFERENCES = ("core", "differences")
"""The scripts of a page of differences."""


LATER = ("programs",)
"""The data that a page has after its scripts: the first picture does not need them, and they are most of the page."""


def page(title: str, data: Mapping[str, Any], scripts: Sequence[str]) -> bytes:
    """The page with this title that the scripts draw from the data. The same data give the same bytes."""
    folder = resources.files("pstranspile.tools.report")
    style = folder.joinpath("style.css").read_text("utf-8")
    script = "\n".join(folder.joinpath(f"{name}.js").read_text("utf-8") for name in scripts)
    allowed = base64.b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'; base-uri 'none'"
    later = {name: data[name] for name in LATER if name in data}
    first = {name: value for name, value in data.items() if name not in later}
    text = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="generator" content="pstranspile">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<noscript>This page draws itself with a script that it holds; scripts are switched off.</noscript>
<div id="page"></div>
<script type="application/json" id="data">{json_for_html(first)}</script>
<script>{script}</script>
{f'<script type="application/json" id="later">{json_for_html(later)}</script>' if later else ""}
</body>
</html>
"""
    return text.encode("utf-8", "backslashreplace")


def json_for_html(data: Mapping[str, Any]) -> str:
    """Data as JSON that is safe within HTML: `<`, `>`, `&` and the line separators of JavaScript are escaped.

    Lone surrogates, which names may have, are escaped by JSON itself.
    """
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
