"""The HTML of the run report: a self-contained page, tables, notes."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from linnaeus_jax.config.redaction import sanitize

STYLE = """
body{font:15px/1.45 system-ui,"Segoe UI",Helvetica,Arial,sans-serif;color:#1b1f24;background:#fff;
max-width:1180px;margin:0 auto;padding:12px 10px 60px}
h1{font-size:26px;margin:14px 0 2px}
h2{font-size:20px;margin:34px 0 6px;border-bottom:1px solid #d5dae0;padding-bottom:3px}
h3{font-size:16px;margin:14px 0 4px}h4{font-size:14px;margin:8px 0 2px}p{margin:4px 0 8px;max-width:900px;color:#444c56}
nav{margin:8px 0;font-size:13px}nav a{margin-right:12px;color:#0b5cad;text-decoration:none;white-space:nowrap}
img{width:100%;height:auto;display:block;margin:6px 0}
table{border-collapse:collapse;font-size:13.5px;margin:4px 0 10px;font-variant-numeric:tabular-nums}
th,td{padding:3px 10px;text-align:right;border-bottom:1px solid #e4e8ec;vertical-align:top}
th{font-weight:600;background:#f4f6f8}th:first-child,td:first-child{text-align:left}
td.left,th.left{text-align:left}td.text{text-align:left;font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12.5px;overflow-wrap:anywhere}
td.best{font-weight:700;background:#e8f4ec}.side{display:flex;flex-wrap:wrap;gap:8px 36px}
.pictures{display:flex;flex-wrap:wrap;gap:8px 14px}figure{margin:0;width:180px;font-size:12px;line-height:1.3;
overflow-wrap:anywhere}
figure img{width:auto;height:96px;max-width:128px;margin:2px 0}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,500px),1fr));gap:4px 20px;align-items:start}
.map img{min-width:600px}.side>div{min-width:0;max-width:100%}.wide{flex:1 0 100%}
@media(max-width:700px){.wide-figure img{width:auto;max-width:none;min-width:820px}
th,td{padding:3px 6px}figure{width:calc(50% - 7px)}}
table.text th{text-align:left}table.text td{min-width:12ch}table.text td:first-child{overflow-wrap:break-word}
ul.warnings,ul.commands{margin:4px 0;padding-left:20px}ul.warnings li{margin:2px 0}ul.commands li{margin:6px 0}
code{font:12.5px ui-monospace,Menlo,Consolas,monospace;background:#f4f6f8;padding:1px 4px;overflow-wrap:anywhere}
.scroll{overflow-x:auto}.option{display:inline-block}
"""


def escaped(text: str) -> str:
    """A text of unknown origin as it stands in a page."""
    return html.escape(sanitize(text))


def with_options(text: str) -> str:
    """A text with options of commands; a line ends within one only where the screen is narrower."""
    return re.sub(r"--[^\s<]+", r'<span class="option">\g<0></span>', escaped(text))


def cell(value: Any) -> str:
    """A value as people read it; None is a dash."""
    if value is None:
        return "–"
    return escaped(f"{value:,.4g}" if isinstance(value, float) else str(value))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, text: bool = False, left: int = 1) -> str:
    """A table; a row may hold `(value, "best")` pairs, which are marked.

    Args:
      columns: their headings; none is shown where all are empty.
      text: all columns hold text, in the font of code; names of the first may go on in the next line after a dot, slash
        or underscore.
      left: so many columns are left-aligned.
    """
    kinds = ["left" if 0 < place < left else "" for place in range(len(columns))]
    marks = {"left": ' class="left"', "": ""}
    head = "".join(f"<th{marks[kind]}>{escaped(name)}</th>" for name, kind in zip(columns, kinds, strict=True))
    body = []
    for row in rows:
        parts: list[str] = []
        for item, aligned in zip(row, kinds, strict=True):
            value, kind = item if isinstance(item, tuple) else (item, "text" if text else aligned)
            shown = re.sub(r"(?<=[./_])(?!$)", "<wbr>", cell(value)) if text and not parts else cell(value)
            parts.append(f'<td class="{kind}">{shown}</td>' if kind else f"<td>{shown}</td>")
        body.append(f"<tr>{''.join(parts)}</tr>")
    if not body:
        return ""
    kind = ' class="text"' if text else ""
    head = f"<tr>{head}</tr>" if any(columns) else ""
    return f'<div class="scroll"><table{kind}>{head}{"".join(body)}</table></div>'


def percent(value: float | None, factor: float = 1.0) -> str | None:
    """A percentage with two decimals."""
    return None if value is None else f"{factor * value:.2f}"


def note(text: str) -> str:
    return f"<p>{escaped(text)}</p>"


def page(title: str, sections: Mapping[str, str]) -> str:
    """A whole page: heading -> content of each section, without those that are empty."""
    shown = [(f"s{number}", escaped(name), text) for number, (name, text) in enumerate(sections.items()) if text]
    links = " ".join(f'<a href="#{anchor}">{name}</a>' for anchor, name, _ in shown)
    body = "".join(f'<section id="{anchor}"><h2>{name}</h2>{text}</section>' for anchor, name, text in shown)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{STYLE}</style></head><body><h1>{escaped(title)}</h1>"
        f"<nav>{links}</nav>{body}</body></html>\n"
    )
