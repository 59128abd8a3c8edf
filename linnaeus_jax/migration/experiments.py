"""Reads experiments written as upper-case YAML into the default configuration tree.

Keys of the schema are read without regard to case; names of data (metadata components, tasks, parameter groups) keep
theirs. A file may hold several documents, merged in order, and may name others, which come first: `BASE` reads a whole
file, `MODEL.BASE` its section MODEL. A later file wins over an earlier one, and the file itself over all that it names.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import logging
import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import get_config
from linnaeus_jax.config.errors import ConfigError
from linnaeus_jax.config.open_nodes import OPEN_NODES, complete_open_nodes
from linnaeus_jax.config.paths import nearest_file, other_than_file
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.config.redaction import redacted
from linnaeus_jax.config.tree import FILTER_KEYS, assign, kind_of, nearest_key
from linnaeus_jax.config.yaml_values import MAX_DEPTH, Loader, check_size, parse_list
from linnaeus_jax.migration.keys import ALIASES, COMPATIBILITY, HARMLESS, ROUTING, VARIANTS
from linnaeus_jax.registry import ALL

logger = logging.getLogger(__name__)

_AMP_LEVELS = {"O0": "float32", "O1": "bfloat16", "O2": "bfloat16", "O3": "bfloat16"}
_MASK_MODES = {"zero": "zero", "attend_mask": "mask", "mask": "mask"}
#: head types of the original's documents that are no types of their own -> what they would compute
_LINEAR_HEADS = {
    "Conv1d": "a convolution over one position is an affine map",
    "LinearHead": "the original has no head of this name",
}

#: of a file; an experiment has some thousand
MAX_BYTES = 1 << 18
#: of a file with all its bases
MAX_DOCUMENTS = 200
_BASE_KEYS = ("BASE", "MODEL.BASE")
_HEADS = ("model", "classification", "heads")
_REMOTE, _BUCKET = ("env", "output", "bucket", "remote"), ("env", "output", "bucket", "bucket")


@dataclasses.dataclass(frozen=True)
class _Entry:
    path: tuple[str, ...]  # as written
    value: Any
    where: str  # file:line

    @property
    def spelled(self) -> str:
        return ".".join(self.path)

    @property
    def shown(self) -> str:
        """The value as messages may show it."""
        return repr(redacted({self.path[-1]: self.value})[self.path[-1]])


def load_experiment(path: str | Path, inside: Path | None = None) -> ConfigDict:
    """See `linnaeus_jax.config.load_yaml`."""
    errors: list[str] = []
    merged: dict[tuple[str, ...], _Entry] = {}
    config = get_config()
    documents = list(islice(_documents(Path(path), (), errors, inside), MAX_DOCUMENTS + 1))
    if len(documents) > MAX_DOCUMENTS:
        raise ConfigError(f"{path}: with its bases it has more than {MAX_DOCUMENTS} documents; name each base once")
    for entry in (entry for document in documents for entry in document if entry.spelled.upper() == "ENV.PLUGINS"):
        if inside is not None:
            raise ConfigError(f"{entry.where}: {entry.spelled} names programs, which {inside} may not; remove the key")
        assign(config, ("env", "plugins"), entry.value)
    import_plugins(config)  # their options are keys
    complete_open_nodes(config)
    for document in documents:
        merged |= _targets(document, errors)
    _unset_zero_rivals(merged)
    _check_widths(merged, errors)
    _check_image_size(config, merged, errors)
    _join_bucket(merged)
    _name_variant(merged)
    ignored = dict[str, list[str]]()
    for target, entry in sorted(merged.items(), key=lambda item: item[0][-1] != "type"):  # a type brings its options
        try:
            _set(config, target, entry)
        except KeyError:
            reason = _excuse(config, target, entry, errors)
            if reason is None:
                near = nearest_key(config, ".".join(target))
                hint = f"; did you mean {near.upper()}?" if near else ""
                errors.append(f"{entry.where}: unknown key {entry.spelled}{hint}")
            elif reason:
                ignored.setdefault(reason, []).append(entry.spelled)
        except TypeError as error:
            errors.append(f"{entry.where}: {error}")
    if errors:
        raise ConfigError(errors)
    if (rows := merged.get(("data", "batch_size_val"))) is not None:
        logger.warning("%s counts rows over all devices; what validation finds does not depend on it", rows.spelled)
    for reason, keys in ignored.items():
        logger.warning("%s %s no effect: %s", ", ".join(keys), "has" if len(keys) == 1 else "have", reason)
    return complete_open_nodes(config)


def target_key(path: tuple[str, ...]) -> tuple[str, ...]:
    """Path in the tree of a documented, upper-case path; names of data keep their case."""
    upper = ".".join(path).upper()
    for old in sorted(ALIASES, key=len, reverse=True):
        if upper == old or upper.startswith(f"{old}."):
            path = (*ALIASES[old].split("."), *path[old.count(".") + 1 :])
            break
    lowered: tuple[str, ...] = ()
    for part in path:
        node = ".".join(lowered)
        opened = OPEN_NODES.get(node)
        names = {name.lower(): name for registry in ALL if registry.section == node for name in registry}
        kept = part if opened and part.lower() not in opened[1] else part.lower()
        lowered += (names.get(kept.lower(), kept) if lowered else kept,)
    if lowered[:3] == _HEADS and lowered[-1] == "bias":
        lowered = (*lowered[:-1], "use_bias")
    return lowered


def target_value(target: tuple[str, ...], spelled: str, value: Any) -> Any:
    """Value of the tree's key `target` for the value of the documented key `spelled`.

    Raises:
      ValueError: the documented key cannot have this value; the text says which it can.
    """
    if target == ("train", "compute_dtype") and spelled.upper().endswith("AMP_OPT_LEVEL"):
        if str(value).upper() not in _AMP_LEVELS:
            raise ValueError(f"{spelled} = {value!r}: choose one of {', '.join(_AMP_LEVELS)}")
        return _AMP_LEVELS[str(value).upper()]
    if target == ("model", "missing_metadata"):
        if str(value) not in _MASK_MODES:
            raise ValueError(f"{spelled} = {value!r}: choose zero or attend_mask")
        return _MASK_MODES[str(value)]
    if target[:3] == _HEADS and target[-1] == "type" and str(value) in _LINEAR_HEADS:
        raise ValueError(f"{spelled} = {value!r}: {_LINEAR_HEADS[value]}; write Linear")
    if target == ("model", "convnext_stages", "depths") and isinstance(value, list):
        return value[:2]  # the others belong to stages that are rotary
    return value


def excuse_of(spelled: str) -> str | None:
    """Why a documented key without a counterpart may be left out; None if it is not such a key."""
    for pattern, reason in COMPATIBILITY.items():
        if fnmatch.fnmatchcase(spelled.upper(), pattern):
            return reason
    return None


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
      ConfigError: it is no file, too long to be an experiment, or no text.
      OSError: it cannot be read.
    """
    if other := other_than_file(path):
        raise ConfigError(f"{path}: this is {other}; give a file")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: more than {MAX_BYTES} bytes are no experiment; is this the right file?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text: {error}") from None


def read_documents(path: Path) -> list[Any]:
    """The documents of a file that may come from anywhere, as plain values.

    Raises:
      ConfigError: it is too large or too deep.
      OSError: it cannot be read.
      ValueError, yaml.YAMLError: it is no YAML of plain values.
    """
    loader, documents = yaml.SafeLoader(read_text(path)), []
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # there is one, says check_node
            check_size(node, path.name)
            documents.append(loader.construct_document(node))
    except RecursionError:
        raise ConfigError(f"{path.name}: nested more than {MAX_DEPTH} times") from None
    finally:
        loader.dispose()
    return documents


def _documents(path: Path, chain: tuple[Path, ...], errors: list[str], inside: Path | None) -> Iterator[list[_Entry]]:
    """Entries of each document, those of its bases before it."""
    path = path.resolve()
    if inside is not None and not path.is_relative_to(inside.resolve()):
        raise ConfigError(f"BASE in {chain[-1].name if chain else path.name} names {path}, outside of {inside}")
    if path in chain:
        raise ConfigError(f"BASE goes round in a circle: {' -> '.join(p.name for p in (*chain, path))}")
    try:
        text = read_text(path)
    except OSError as error:
        near = nearest_file(path)
        hint = f"; did you mean {near.name if near.parent == path.parent else near}?" if near else ""
        by = f" (named by BASE in {chain[-1].name})" if chain else ""
        raise ConfigError(f"{path}: cannot be read{by}: {error.strerror}{hint}") from None
    try:
        loader = Loader(text)
        loader.name = path.name
        while loader.check_node():
            node = loader.get_node()
            if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
                continue
            if not isinstance(node, yaml.MappingNode):
                raise ConfigError(f"{path.name}:{node.start_mark.line + 1}: a document must be a mapping of keys")
            check_size(node, path.name)
            entries = list(_Reader(loader, path.name, errors).entries(node, ()))
            for entry in [entry for entry in entries if entry.spelled.upper() in _BASE_KEYS]:
                for base in filter(None, entry.value if isinstance(entry.value, list) else [entry.value]):
                    for document in _documents(_find_base(path, str(base)), (*chain, path), errors, inside):
                        yield document if len(entry.path) == 1 else _model_section(document)
            yield [entry for entry in entries if entry.spelled.upper() not in _BASE_KEYS]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise ConfigError(f"{path.name}{line}: not valid YAML: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{path.name}: nested more than {MAX_DEPTH} times") from None


def _find_base(path: Path, base: str) -> Path:
    """The file that `base` in `path` means; where there is none, what it would be beside `path`."""
    folders = [path.parent, *path.parent.parents]
    if os.environ.get("CONFIG_DIR"):
        folders.insert(1, Path(os.environ["CONFIG_DIR"]))
    return next((folder / base for folder in folders if (folder / base).is_file()), path.parent / base)


def _model_section(document: list[_Entry]) -> list[_Entry]:
    """The section MODEL of a document; one without it is all model."""
    model = [entry for entry in document if entry.path[0].upper() == "MODEL"]
    if not model:
        return [dataclasses.replace(entry, path=("MODEL", *entry.path)) for entry in document]
    for entry in document:
        if entry not in model:
            logger.warning("%s: %s is not read: MODEL.BASE reads only MODEL", entry.where, entry.spelled)
    return model


class _Reader:
    """Flattens the nodes of one document, watching for duplicate keys."""

    def __init__(self, loader: Loader, file: str, errors: list[str]) -> None:
        self.loader, self.file, self.errors = loader, file, errors

    def entries(self, node: yaml.MappingNode, path: tuple[str, ...]) -> Iterator[_Entry]:
        for key, line, child in self._pairs(node, path):
            below = (*path, key)
            if isinstance(child, yaml.MappingNode) and child.value and key.lower() not in FILTER_KEYS:
                yield from self.entries(child, below)
            else:
                yield _Entry(below, self._plain(child, below), f"{self.file}:{line}")

    def _pairs(self, node: yaml.MappingNode, path: tuple[str, ...]) -> list[tuple[str, int, yaml.Node]]:
        line_of: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{self.file}:{line}: a key of {'.'.join(path) or 'the document'} is no text")
            if key.value in line_of and key.value != "<<":
                dotted = ".".join((*path, key.value))
                self.errors.append(
                    f"{self.file}:{line}: {dotted} is already given in line {line_of[key.value]}; keep one"
                )
            line_of.setdefault(key.value, line)
        self.loader.flatten_mapping(node)  # merge keys "<<"
        return [(key.value, key.start_mark.line + 1, child) for key, child in node.value]

    def _plain(self, node: yaml.Node, path: tuple[str, ...]) -> Any:
        """Value of a leaf; the keys of mappings inside (parameter filters) are lower-cased."""
        if isinstance(node, yaml.MappingNode):
            return {key.lower(): self._plain(child, (*path, key)) for key, _, child in self._pairs(node, path)}
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(child, path) for child in node.value]
        try:
            return self.loader.construct_object(node, deep=True)
        except ValueError as error:  # an impossible date, more digits than Python reads
            self.errors.append(f"{self.file}:{node.start_mark.line + 1}: {'.'.join(path)}: {error}")
            return None


def _targets(document: list[_Entry], errors: list[str]) -> dict[tuple[str, ...], _Entry]:
    """Entries of one document by path in the tree; two spellings of one key must agree."""
    targets: dict[tuple[str, ...], _Entry] = {}
    for entry in document:
        target = target_key(entry.path)
        try:
            entry = dataclasses.replace(entry, value=target_value(target, entry.spelled, entry.value))
        except ValueError as error:
            errors.append(f"{entry.where}: {error}")
            continue
        rival = targets.setdefault(target, entry)
        if rival.spelled != entry.spelled and rival.value != entry.value:
            errors.append(
                f"{entry.where}: {entry.spelled} = {entry.shown} contradicts {rival.spelled} = {rival.shown} "
                f"({rival.where}); they are two names of one key, keep one"
            )
        targets[target] = entry
    return targets


def _unset_zero_rivals(merged: dict[tuple[str, ...], _Entry]) -> None:
    """Turns a zero into None where another member of the same steps/fraction/epochs set is given."""
    sets: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for target in merged:
        if match := re.fullmatch(r"(.+)_(steps|fraction|epochs|interval)", target[-1]):
            sets.setdefault((*target[:-1], match[1]), []).append(target)
    for members in sets.values():
        zeros = [m for m in members if not isinstance(merged[m].value, list) and merged[m].value == 0]
        if any(merged[m].value not in (0, None, []) for m in members):
            for member in zeros:
                merged[member] = dataclasses.replace(merged[member], value=None)


def _check_widths(merged: Mapping[tuple[str, ...], _Entry], errors: list[str]) -> None:
    """Rotary stages have the last two widths of the convolutional ones, which a file may repeat."""
    widths = merged.get(("model", "rope_stages", "dims"))
    whole = merged.get(("model", "convnext_stages", "dims"))
    if widths is not None and (whole is None or list(whole.value)[2:] != list(widths.value)):
        errors.append(
            f"{widths.where}: {widths.spelled} = {widths.value!r} must be the last two of MODEL.CONVNEXT_STAGES.DIMS = "
            f"{whole.value if whole else 'not given'}; set that key"
        )


def _check_image_size(config: ConfigDict, merged: Mapping[tuple[str, ...], _Entry], errors: list[str]) -> None:
    """The model takes images of DATA.IMG_SIZE, which a file may repeat."""
    size, given = merged.get(("model", "img_size")), merged.get(("data", "img_size"))
    needed = given.value if given else config.data.img_size
    if size is not None and size.value not in (None, needed):
        errors.append(
            f"{size.where}: {size.spelled} = {size.value!r} differs from DATA.IMG_SIZE = {needed!r}; remove the first"
        )


def _join_bucket(merged: dict[tuple[str, ...], _Entry]) -> None:
    """REMOTE and BUCKET of a file are one destination of rclone, remote:bucket."""
    remote, bucket = merged.get(_REMOTE), merged.get(_BUCKET)
    if remote is not None and bucket is not None and remote.value and bucket.value and ":" not in str(remote.value):
        merged[_REMOTE] = dataclasses.replace(remote, value=f"{remote.value}:{bucket.value}")
        logger.warning("%s is now part of env.output.bucket.remote = %s", bucket.spelled, merged[_REMOTE].shown)
        del merged[_BUCKET]


def _name_variant(merged: dict[tuple[str, ...], _Entry]) -> None:
    """The size that MODEL.NAME or the name of the file that holds the widths says, e.g. mFormerV1_lg."""
    name, family = merged.get(("model", "name")), merged.get(("model", "type"))
    widths = merged.get(("model", "attention_stages", "dims")) or merged.get(("model", "convnext_stages", "dims"))
    says = [(name, str(name.value))] if name else []
    says += [(widths, widths.where.partition(".")[0])] if widths else []
    for entry, text in says:
        kind, _, size = text.partition("_")
        if size in VARIANTS.get(kind, ()) and (family is None or family.value == kind):
            merged.setdefault(("model", "variant"), dataclasses.replace(entry, value=size))
            if entry is name:
                del merged[("model", "name")]
            return


def _set(config: ConfigDict, target: tuple[str, ...], entry: _Entry) -> None:
    value, kind = entry.value, kind_of(config, target)
    if (value is None or value == {}) and (kind is ConfigDict or ".".join(target[:-1]) in OPEN_NODES):
        return  # an empty section changes nothing; an empty entry has the defaults of its kind by now
    if isinstance(value, str) and value[:1] in ("(", "[") and kind is tuple:
        value = parse_list(value)
    assign(config, target, value)


def _excuse(config: ConfigDict, target: tuple[str, ...], entry: _Entry, errors: list[str]) -> str | None:
    """Reason to ignore a key that is not in the tree, "" if it was reported as an error, None if it is unknown."""
    for pattern, (harmless, fix) in HARMLESS.items():
        if fnmatch.fnmatchcase(entry.spelled.upper(), pattern):
            if entry.value in harmless:
                return excuse_of(entry.spelled) or "this is how it always works here"
            errors.append(f"{entry.where}: {entry.spelled} = {entry.shown}: {fix}")
            return ""
    if target[:3] == _HEADS and target[-1] in ROUTING:
        kind = config.model.classification.heads[target[3]].type
        if kind != "HierarchicalSoftmax":
            errors.append(
                f"{entry.where}: {entry.spelled} = {entry.shown}: a head of TYPE {kind} does not route; "
                "ConditionalClassifier does"
            )
            return ""
    return excuse_of(entry.spelled)
