"""`reference/api.md`: what is meant to be used from Python, from signatures and docstrings."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import io
import re
import textwrap
import tokenize
import types
from collections.abc import Iterator
from typing import Any

from docs.making.markdown import MADE, code, sentence, table
from linnaeus_jax.registry import ALL

#: heading -> (text, dotted names of what stands below it)
SECTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Using a trained model": (
        "[using a model](../using_a_model.md) explains it.",
        (
            "linnaeus_jax.load",
            "linnaeus_jax.Model",
            "linnaeus_jax.inference.results.Prediction",
            "linnaeus_jax.inference.results.Taxon",
            "linnaeus_jax.inference.metadata.Observation",
            "linnaeus_jax.inference.answers.AnswerOptions",
            "linnaeus_jax.inference.pictures.PictureError",
            "linnaeus_jax.inference.files.vector_files.open_vectors",
            "linnaeus_jax.inference.files.vector_files.StoredVectors",
            "linnaeus_jax.inference.files.nearest.Nearest",
            "linnaeus_jax.inference.files.nearest.Neighbours",
        ),
    ),
    "Training from Python": (
        "The same as the command line does: a configuration, then a run.",
        (
            "linnaeus_jax.config.get_config",
            "linnaeus_jax.config.load_config",
            "linnaeus_jax.config.load_yaml",
            "linnaeus_jax.config.complete_open_nodes",
            "linnaeus_jax.run.trainer.run",
            "linnaeus_jax.config.errors.UserError",
            "linnaeus_jax.config.errors.ConfigError",
        ),
    ),
    "Reading a run": (
        "[metrics](../metrics.md) and [report](../report.md) use them.",
        (
            "linnaeus_jax.reporting.run_record.RunRecord",
            "linnaeus_jax.reporting.metrics_log.Row",
            "linnaeus_jax.reporting.report.write_report",
        ),
    ),
    "Registries": (
        "What a configuration chooses by name stands in a registry; a file named in `env.plugins` adds to it. "
        "[extending](../extending.md) has an example of each.",
        ("linnaeus_jax.registry.Registry", "linnaeus_jax.registry.RegistrationError"),
    ),
    "Models and heads": (
        "",
        (
            "linnaeus_jax.models.ModelFamily",
            "linnaeus_jax.models.settings.Settings",
            "linnaeus_jax.models.HierarchicalHead",
            "linnaeus_jax.models.ClassificationHeads",
            "linnaeus_jax.models.HeadSpec",
            "linnaeus_jax.models.build_model",
        ),
    ),
    "Optimizers and schedules": (
        "",
        ("linnaeus_jax.learning.transforms.elementwise", "linnaeus_jax.schedules.ScheduleKind"),
    ),
    "Data": (
        "",
        (
            "linnaeus_jax.data.samplers.Sampler",
            "linnaeus_jax.data.samplers.SamplerSettings",
            "linnaeus_jax.data.images.ImageFiles",
            "linnaeus_jax.data.images.ImageSource",
            "linnaeus_jax.data.images.EncodedImages",
        ),
    ),
    "Metrics, probes and sinks": (
        "",
        (
            "linnaeus_jax.metrics.register",
            "linnaeus_jax.metrics.register_subset",
            "linnaeus_jax.metrics.register_phase",
            "linnaeus_jax.metrics.MetricInputs",
            "linnaeus_jax.metrics.PhaseMetric",
            "linnaeus_jax.metrics.Phase",
            "linnaeus_jax.metrics.accuracy",
            "linnaeus_jax.metrics.Metric",
            "linnaeus_jax.metrics.MetricsTracker",
            "linnaeus_jax.step.probes.Probe",
            "linnaeus_jax.step.probes.ProbeInputs",
            "linnaeus_jax.reporting.sinks.Sink",
        ),
    ),
}

INTRODUCTION = """# Python API

What is meant to be used from Python. Everything else is the inside of the program and may change. Importing
`linnaeus_jax` alone does not import JAX; `linnaeus_jax.load` does.

```python
import linnaeus_jax

model = linnaeus_jax.load("bundle")
print(linnaeus_jax.__version__, model.predict("photos/4000000.jpg")[0].answer)
```

Arrays are described by their type and shape: B rows of a batch, A micro-batches of an update, T ranks (finest first), C
classes, D metadata columns, K metadata components, H and W pixels."""

_HEADING = re.compile(r"(Args|Attributes|Returns|Raises|Yields):\s*(.*)")


def find(dotted: str) -> Any:
    """The object of a dotted name."""
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


# ---- docstrings


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """(heading, lines) of a docstring; the heading of its beginning is empty."""
    heading, lines = "", list[str]()
    for line in inspect.cleandoc(text).splitlines():
        if match := _HEADING.fullmatch(line):
            yield heading, lines
            heading, lines = match[1], [f"  {match[2]}"] if match[2] else []
        elif heading and line and not line.startswith(" "):
            yield heading, lines
            heading, lines = "", [line]
        else:
            lines.append(line)
    yield heading, lines


def _items(lines: list[str]) -> list[tuple[str, str]]:
    """(name, text) of the lines of a section; the name is empty where the section is mere text."""
    items: list[tuple[str, str]] = []
    block = textwrap.dedent("\n".join(lines)).strip("\n").splitlines()
    for line in block:
        match = re.fullmatch(r"([*\w., ]+?): (.*)|([*\w., ]+):", line)
        if match and not line.startswith(" "):
            items.append(((match[1] or match[3]).strip(), (match[2] or "").strip()))
        elif items and (line.startswith(" ") or not line):
            items[-1] = items[-1][0], f"{items[-1][1]} {line.strip()}"
        elif items:
            items.append(("", line))
        else:
            items.append(("", line.strip()))
    merged: list[tuple[str, str]] = []
    for name, text in items:
        if merged and not name:
            merged[-1] = merged[-1][0], f"{merged[-1][1]} {text}"
        else:
            merged.append((name, text))
    return merged


def documented(text: str, heading: str) -> list[str]:
    """The names that a section of a docstring describes."""
    return [
        name.strip().lstrip("*")
        for title, lines in _sections(text)
        if title == heading
        for names, _ in _items(lines)
        for name in names.split(",")
        if name.strip()
    ]


def _prose(text: str) -> str:
    """A docstring as Markdown."""
    parts = []
    for heading, lines in _sections(text):
        if not heading:
            parts.append(_code_blocks("\n".join(lines).strip()))
            continue
        items = _items(lines)
        rows = [f"* {code(name)}: {sentence(text)}" if name else f"* {sentence(text)}" for name, text in items]
        if rows:
            parts.append(f"{heading}:\n\n" + "\n".join(rows))
    return "\n\n".join(part for part in parts if part)


def _code_blocks(text: str) -> str:
    """Indented blocks as fenced ones."""
    parts = []
    for block in re.split(r"\n{2,}", text):
        if block.startswith("    "):
            parts.append(f"```text\n{textwrap.dedent(block)}\n```")
        else:
            parts.append(block.replace("<", "&lt;") if "`" not in block else block)
    return "\n\n".join(parts).replace("\n```\n\n```text\n", "\n\n")


# ---- signatures


def _signature(name: str, item: Any, skip: int = 0) -> str:
    """A signature, on several lines where it is long; `skip` parameters at its beginning are left out."""
    signature = inspect.signature(item)
    pieces, star = list[str](), False
    for parameter in list(signature.parameters.values())[skip:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            pieces.append("*")
        star |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        text = f"{prefix}{parameter.name}"
        if parameter.annotation is not parameter.empty:
            text += f": {_type(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        pieces.append(text)
    result = (
        ""
        if signature.return_annotation in (signature.empty, "None", None)
        else f" -> {_type(signature.return_annotation)}"
    )
    line = f"{name}({', '.join(pieces)}){result}"
    if len(line) <= 110:
        return line
    return "\n".join([f"{name}(", *(f"    {piece}," for piece in pieces), f"){result}"])


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def fields_of(cls: Any) -> dict[str, tuple[str, str]]:
    """Field of a dataclass or named tuple, or class variable -> (type, comment behind it or above it)."""
    if not isinstance(cls, type):
        return {}
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return {}
    comments: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("#: ").partition("  #")[0]
    found, lines = {}, source.splitlines()
    for number, line in enumerate(lines, 1):
        match = re.match(r"    ([a-z]\w*): ([^=#]+?)(?:\s*=.*?)?(?:\s+#.*)?$", line)
        if match and not match[1].startswith("_"):
            kind = match[2].strip()
            above, at = [], number - 1
            while at in comments and lines[at - 1].lstrip().startswith("#"):
                above.insert(0, comments[at])
                at -= 1
            found[match[1]] = kind, comments.get(number) or " ".join(above)
    return {name: found[name] for name in found if name in _annotations(cls)}


def _annotations(cls: type) -> dict[str, Any]:
    return inspect.get_annotations(cls)


def methods_of(cls: type) -> Iterator[tuple[str, Any, str]]:
    """(name, function, kind) of the public methods and properties that a class itself defines."""
    for name, member in vars(cls).items():
        if (name.startswith("_") and name != "__call__") or name == "setup":
            continue
        if isinstance(member, (staticmethod, classmethod)):
            yield name, member.__func__, type(member).__name__
        elif isinstance(member, (property, functools.cached_property)):
            yield name, member.fget if isinstance(member, property) else member.func, "property"
        elif isinstance(member, types.FunctionType) and member.__module__ == cls.__module__:
            yield name, inspect.unwrap(member), "method"


def _own_doc(item: Any) -> str:
    """The docstring; empty where it is one that `dataclass` or `NamedTuple` made, or that of a base."""
    text = (vars(item).get("__doc__") if isinstance(item, type) else item.__doc__) or ""
    made = isinstance(item, type) and re.match(rf"{item.__name__}\(.*\)", text, re.DOTALL)
    return "" if made else text


def errors_of(dotted: str) -> list[str]:
    """What is undocumented, or documented wrongly, of a public name."""
    item = find(dotted)
    if not _own_doc(item):
        return [f"{dotted} has no docstring"]
    errors = []
    functions = [(dotted, item)] if not isinstance(item, type) else []
    if isinstance(item, type):
        known = {*fields_of(item), *_instance_names(item), *(name for name, *_ in methods_of(item))}
        known |= {name for base in item.__mro__[1:] for name in _annotations(base)}
        text = _own_doc(item)
        unknown = [name for name in documented(text, "Attributes") if name not in known]
        errors += [f"{dotted}: no attribute {name!r}" for name in unknown]
        described = set(documented(text, "Attributes"))
        for name, (_, comment) in fields_of(item).items():
            if not comment and name not in described and not re.search(rf"`{name}`", text):
                errors.append(f"{dotted}.{name} is not described")
        for name, function, _ in methods_of(item):
            if not (function.__doc__ or "").strip():
                errors.append(f"{dotted}.{name} has no docstring")
            functions.append((f"{dotted}.{name}", function))
        if _own_init(item):
            functions.append((f"{dotted}()", item.__init__))
            wrong = set(documented(text, "Args")) - set(inspect.signature(item.__init__).parameters)
            errors += [f"{dotted}: no parameter {name!r}" for name in sorted(wrong)]
    for name, function in functions:
        parameters = set(inspect.signature(function).parameters)
        wrong = [given for given in documented(function.__doc__ or "", "Args") if given not in parameters]
        errors += [f"{name}: no parameter {given!r}" for given in wrong]
    return errors


def _own_init(item: type) -> bool:
    return isinstance(vars(item).get("__init__"), types.FunctionType) and not dataclasses.is_dataclass(item)


def _instance_names(cls: type) -> set[str]:
    """Attributes that `__init__` sets."""
    if not _own_init(cls):
        return set()
    return set(re.findall(r"self\.(\w+)", inspect.getsource(cls.__init__)))  # type: ignore[misc]


# ---- the page


def _entry(dotted: str) -> str:
    item, name = find(dotted), dotted.rpartition(".")[2]
    parts = [f"### {dotted}"]
    if isinstance(item, type):
        fields = fields_of(item)
        kinds = [base.__name__ for base in item.__bases__ if issubclass(base, Exception)]
        if kinds:
            parts.append(f"Exception, a kind of {code(kinds[0])}.")
        elif _own_init(item):
            parts.append(f"```text\n{_signature(name, item.__init__, 1)}\n```")
        parts.append(_prose(_own_doc(item)))
        described = set(documented(_own_doc(item), "Attributes"))
        rows = [
            (code(field), code(kind), sentence(comment) if comment else "")
            for field, (kind, comment) in fields.items()
            if comment or field not in described
        ]
        if rows:
            parts.append(table(("field", "type", "what it is"), rows))
        for method, function, kind in methods_of(item):
            head = f"{name}.{method}" if kind != "property" else f"{name}.{method}  # property"
            shown = head if kind == "property" else _signature(head, function, kind != "staticmethod")
            parts.append(f"#### {name}.{method}\n\n```text\n{shown}\n```\n\n{_prose(function.__doc__ or '')}")
    else:
        parts.append(f"```text\n{_signature(name, item)}\n```\n\n{_prose(item.__doc__ or '')}")
    return "\n\n".join(part for part in parts if part.strip())


def _registries() -> str:
    named = {id(value): name for name, value in vars(importlib.import_module("linnaeus_jax.registry")).items()}
    rows = []
    for registry in ALL:
        name = named[id(registry)]
        options = f"{registry.section}.&lt;name>" if registry.section else "beside the name"
        rows.append((code(name), registry.kind, code(registry.key), options))
    return table(("registry", "of", "key that names one", "options"), rows)


def public() -> list[str]:
    """Dotted names of everything on the page."""
    return [name for _, names in SECTIONS.values() for name in names]


def make() -> str:
    """The text of the page."""
    pieces = [INTRODUCTION]
    links = []
    for heading, (_, names) in SECTIONS.items():
        anchor = re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        members = ", ".join(f"[{name.rpartition('.')[2]}](#{_anchor(name)})" for name in names)
        links.append(f"* [{heading}](#{anchor}): {members}")
    pieces.append("\n".join(links))
    for heading, (text, names) in SECTIONS.items():
        pieces.append(f"## {heading}" + (f"\n\n{text}" if text else ""))
        if heading == "Registries":
            pieces.append(_registries())
        pieces += [_entry(name) for name in names]
    return "\n\n".join([*pieces, MADE]) + "\n"


def _anchor(dotted: str) -> str:
    return dotted.lower().replace(".", "")
