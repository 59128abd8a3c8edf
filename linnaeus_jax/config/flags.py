"""The command line: a configuration file, typed overrides of its keys, and the few documented switches."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import json
import re
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from linnaeus_jax.config.defaults import complete_open_nodes, declared, get_config
from linnaeus_jax.config.errors import ConfigError, text_of
from linnaeus_jax.config.keys import Key
from linnaeus_jax.config.open_nodes import OPEN_NODES
from linnaeus_jax.config.paths import nearest_file, other_than_file, typed_command
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.config.processes import OPTIONS
from linnaeus_jax.config.saved import config_from_json
from linnaeus_jax.config.tree import FILTER_KEYS, assign, kind_of, mark_given, nearest_key, shown
from linnaeus_jax.config.yaml_values import parse_list
from linnaeus_jax.mistakes import shortened
from linnaeus_jax.registry import COMMAND_OPTIONS

# ---- What `--help KEY` prints: default, values and meaning of a key, or of all keys of a section


_WIDTH = 100


def key_help(name: str) -> str:
    """The keys that a name stands for: that of a key, of a section, or the last part of one.

    Raises:
      ConfigError: it is none of them.
    """
    asked = name.removeprefix("--").removeprefix("config.").rstrip(".")
    keys = declared()
    found = [path for path in keys if f"{path}.".startswith(f"{asked}.")]
    found = found or [path for path in keys if path.endswith(f".{asked}")]
    if not found:
        near = nearest_key(get_config(), asked.lower())
        raise ConfigError(f"--help {name}: there is no such key" + (f"; did you mean {near}?" if near else ""))
    return "\n".join(_described(path, keys[path]) for path in found)


def _described(path: str, key: Key) -> str:
    rivals = f"; give this or {' or '.join(key.rivals)}" if key.rivals else ""
    counts = f" (counts as {key.counts:g})" if key.counts is not None else ""
    meaning = textwrap.fill(f"{key.meaning}{rivals}", _WIDTH, initial_indent="    ", subsequent_indent="    ")
    values = textwrap.fill(key.values(), _WIDTH, initial_indent="    ", subsequent_indent="      ")
    return f"{path} = {key.default!r}{counts}\n{values}\n{meaning}"


# ----------------------------------------------------------------------------------------------------------------------


COMMAND = "linnaeus train"
QUICKSTART = "configs/quickstart.py"
_PACKAGE = Path(__file__).parents[1]
#: where the configurations of this program lie: in an installed package, in a checkout
_SHIPPED = (_PACKAGE / "configs", _PACKAGE.parent / "configs")

USAGE = f"""usage: {COMMAND} --config=FILE[:ARGUMENT] [options]

  --config=FILE[:ARGUMENT]     Python file with get_config(); configs/yaml.py:experiment.yaml loads YAML. Names without
                               .py are those of this program's own, from any directory: quickstart, mformer_v1_sm,
                               yaml:experiment.yaml; or the config.json of a run, to train once more
  --config.a.b=VALUE           override a key; lists as 1,2 or (1,2) or a,b; None unsets
  --workdir=DIR                run directory; by default made from env.output.base_dir and the experiment's names
  --skip-validation            on resume, drop validations that were still pending
  --debug underflow_overflow   find the first layer with non-finite values
  --[no-]enable_debug_logger   structured debug log on or off
  --debug_log_dir=DIR          where the debug log goes
  --coordinator=HOST:PORT      several processes make this run; the address of process 0. Found under Slurm and MPI
  --processes=N --process=I    how many, and which one this is; the launcher's by default
  --help [KEY]                 this text; of a key or a section: default, values and meaning"""

_VALUE_FLAGS = ("config", "workdir", "debug", "debug_log_dir")
SWITCHES = ("skip_validation", "enable_debug_logger", "no_enable_debug_logger")


def load_config(argv: Sequence[str]) -> tuple[ConfigDict, str | None]:
    """Builds the configuration that a command line describes, and imports its plugins.

    Args:
      argv: arguments without the program's name.

    Returns:
      The locked, completed tree, and the run directory that is given outside it.

    Raises:
      ConfigError: everything wrong with the arguments at once. Command lines of other programs that are documented
        for this one end with the command to use instead.
      SystemExit: after printing the usage, or what there is to know of keys, for `--help`.
    """
    if asked := {"--help", "-h"} & set(argv):
        named = [token for token in argv[argv.index(asked.pop()) + 1 :] if token not in ("--help", "-h")]
        print("\n".join(map(key_help, named)) or USAGE)
        raise SystemExit(0)
    for name in (option_name(token) for token in argv if token.startswith("--")):
        if name in COMMAND_OPTIONS:
            raise ConfigError(f"these are options of another program; use instead:\n  {COMMAND_OPTIONS[name](argv)}")
    options, overrides, errors = _split(argv)
    if "config" not in options:
        raise ConfigError([*errors, f"--config is missing; for a first run use --config={QUICKSTART}"])
    config = _load_file(options["config"])
    config.lock()
    given = [*_documented_switches(options, errors), *overrides]
    # plugins first: they add options; then types, which decide what other options there are
    given.sort(key=lambda pair: (pair[0] != "env.plugins", not pair[0].endswith(".type")))
    if not any(dotted == "env.plugins" for dotted, _ in given):
        _complete(config)
    for dotted, text in given:
        path = tuple(dotted.split("."))
        try:
            assign(config, path, _parse(text, kind_of(config, path)))
            if dotted == "env.plugins":
                _complete(config)
        except KeyError:
            errors.append(_unknown_key(config, dotted, "--config."))
        except TypeError as error:
            errors.append(f"--config.{error}")
        except ValueError:
            errors.append(f"--config.{dotted} = {shown(text)}: expected a list such as 1,2 or (1,2)")
    if errors:
        raise ConfigError(errors)
    _complete(config)
    known = complete_open_nodes(get_config())
    if unknown := list(_unknown(known, config)):
        raise ConfigError([f"--config={options['config']}: {_unknown_key(known, key)}" for key in unknown])
    mark_given(config, (key for key, _ in given))
    return config, options.get("workdir")


def _unknown_key(known: ConfigDict, key: str, prefix: str = "") -> str:
    near = nearest_key(known, key.lower())
    return f"{prefix}{key}: unknown key" + (f"; did you mean {prefix}{near}?" if near else "")


def _complete(config: ConfigDict) -> ConfigDict:
    """Imports the plugins and fills in the options that they and open nodes bring."""
    import_plugins(config)
    try:
        return complete_open_nodes(config)
    except KeyError as error:
        raise ConfigError(_unknown_key(config, error.args[0])) from None


def option_name(token: str) -> str:
    """The name of an option as it was typed, `--NAME` or `--NAME=VALUE`; dashes are underscores."""
    name = token[2:].partition("=")[0].replace("-", "_")
    return "no_enable_debug_logger" if name == "noenable_debug_logger" else name


def _split(argv: Sequence[str]) -> tuple[dict[str, str], list[tuple[str, str]], list[str]]:
    """Options by name, overrides in order as (dotted key, text), and errors."""
    options, overrides, errors = dict[str, str](), list[tuple[str, str]](), list[str]()
    tokens = list(argv)
    while tokens:
        token = tokens.pop(0)
        _, given, value = token.partition("=")
        name = option_name(token)
        is_override = token.startswith("--config.")
        if not token.startswith("--"):
            errors.append(f"{token!r} is not an option; options begin with --")
        elif name in SWITCHES and not given:
            options[name] = "true"
        elif is_override or name in _VALUE_FLAGS:
            if not given and tokens and not tokens[0].startswith("--"):
                value = tokens.pop(0)
            elif not given and not is_override:
                errors.append(f"--{name} needs a value: --{name}=VALUE")
                continue
            if is_override:
                overrides.append((token[len("--config.") :].partition("=")[0], value if value or given else "true"))
            elif name in options:
                errors.append(f"--{name} is given twice; keep one")
            else:
                options[name] = value
        elif name in SWITCHES:
            errors.append(f"{token}: this switch takes no value; write --{name}")
        else:
            near = difflib.get_close_matches(name, [*_VALUE_FLAGS, *SWITCHES, *OPTIONS], n=1)
            hint = f"did you mean --{near[0]}?" if near else "see --help"
            errors.append(f"--{name} is not an option; {hint}")
            if not given and tokens and not tokens[0].startswith("--"):
                tokens.pop(0)  # its value
    return options, overrides, errors


def _documented_switches(options: dict[str, str], errors: list[str]) -> list[tuple[str, str]]:
    """Overrides that the documented switches stand for."""
    overrides = []
    if "debug" in options:
        if options["debug"] == "underflow_overflow":
            overrides.append(("debug.underflow_overflow.enabled", "true"))
        else:
            errors.append(f"--debug {options['debug']!r} is unknown; the only choice is underflow_overflow")
    if "enable_debug_logger" in options and "no_enable_debug_logger" in options:
        errors.append("--enable_debug_logger and --no-enable_debug_logger contradict each other; keep one")
    elif "enable_debug_logger" in options or "no_enable_debug_logger" in options:
        overrides.append(("debug.jsonl.enabled", str("enable_debug_logger" in options)))
    if "debug_log_dir" in options:
        overrides.append(("debug.jsonl.dir", options["debug_log_dir"]))
    if "skip_validation" in options:
        overrides.append(("train.skip_validation", "true"))
    return overrides


def _parse(text: str, kind: type | None) -> Any:
    """Plain value of an override for a key of type `kind` (None: a new key of a filter)."""
    if text == "None":
        return None
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if kind in (int, float):
        if text.lower() in ("none", "null"):
            return None
        for number in (int, float):
            try:
                return number(text)
            except ValueError:
                continue
        return text
    if kind is tuple:
        return parse_list(text)
    if kind is None:
        items = parse_list(text)
        return items if "," in text or text[:1] in ("(", "[") else (*items, "")[0]
    return text


def _saved(path: Path, given: str) -> ConfigDict:
    """The configuration of an earlier run."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(tree, dict):
            raise TypeError(f"it holds {type(tree).__name__}")
        config = config_from_json(tree)
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"--config={given}: not the config.json of a run of this version: {reason}") from error
    config.unlock()
    return config


def _load_file(given: str) -> ConfigDict:
    """What `get_config` of the Python file in `FILE[:ARGUMENT]` returns, or what the config.json of a run says; every
    failure is one line."""
    name, _, argument = given.partition(":")
    path = _shipped(name) or Path(name)
    if path.suffix in (".yaml", ".yml"):
        raise ConfigError(f"--config={given}: YAML is loaded by {typed_command(f'--config=configs/yaml.py:{given}')}")
    if not path.is_file():
        other = other_than_file(path)
        problem = f"this is {other}; give a Python file with get_config()" if other else "there is no such file"
        names = [p.stem for folder in _SHIPPED for p in folder.glob("*.py")]
        near = nearest_file(path) or next(iter(difflib.get_close_matches(name, names, n=1)), None)
        raise ConfigError(f"--config={given}: {problem}" + (f"; did you mean {near}?" if near else ""))
    if path.suffix == ".json":
        return _saved(path, given)
    spec = importlib.util.spec_from_file_location(f"linnaeus_jax_config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--config={given}: not a Python file; it must end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        make = getattr(module, "get_config", None)
        if make is None:
            raise ConfigError(f"--config={given}: the file has no function get_config()")
        needed = [p for p in inspect.signature(make).parameters.values() if p.default is p.empty]
        if needed and not argument:
            raise ConfigError(f"--config={given}: needs an argument: --config={name}:{needed[0].name.upper()}")
        config = make(argument) if argument else make()
    except ConfigError:
        raise
    except SystemExit as error:
        raise ConfigError(f"--config={given}: the file ends the program by sys.exit; take that out") from error
    except (Exception, GeneratorExit) as error:  # the file is the user's: what it raises is reported as its line
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else 1)
        raise ConfigError(f"{path}:{line}: {type(error).__name__}: {_reason(error)}") from None
    if not isinstance(config, ConfigDict):
        raise ConfigError(f"--config={given}: get_config() returned {type(config).__name__}, not a ConfigDict")
    if missing := list(_missing(get_config(), config)):
        raise ConfigError(
            f"--config={given}: the configuration lacks {shortened(missing)}; begin with "
            "linnaeus_jax.config.get_config() and change its values, but delete none"
        )
    try:
        repr(config.to_dict())
    except RecursionError:
        raise ConfigError(f"--config={given}: a value of the configuration is nested without end") from None
    return config


def _reason(error: BaseException) -> str:
    """What a configuration file raised; of a key that there is not, how an entry of one's own is added.

    ml_collections lists all neighbours of the key with their values.
    """
    if isinstance(error, AttributeError) and "since the config is locked" in str(error):
        first, _, near = str(error.args[0]).partition(" Other fields present:")
        hint = re.search(r"Did you mean .*", near)
        add = "A new entry, such as a metadata component, is added within `with config.unlocked():`"
        return " ".join(f"{first} {hint[0] if hint else add}".split())
    return text_of(error)


def _shipped(name: str) -> Path | None:
    """The configuration of this program of that name; None for names that are paths."""
    if not name.isidentifier():
        return None
    return next((path for folder in _SHIPPED if (path := folder / f"{name}.py").is_file()), None)


def _missing(default: ConfigDict, config: ConfigDict, prefix: str = "") -> Iterator[str]:
    """Keys of the default tree that a configuration lacks; entries of open nodes may be left out."""
    for key, value in default.items():
        name = f"{prefix}{key}"
        if key not in config or isinstance(value, ConfigDict) != isinstance(config[key], ConfigDict):
            if prefix.removesuffix(".") not in OPEN_NODES:
                yield name
        elif isinstance(value, ConfigDict) and key not in FILTER_KEYS:
            yield from _missing(value, config[key], f"{name}.")


def _unknown(known: ConfigDict, config: ConfigDict, prefix: str = "") -> Iterator[str]:
    """Keys that nothing reads, which an unlocked tree takes; entries of open nodes are completed by their kind."""
    for key, value in config.items() if prefix.removesuffix(".") not in OPEN_NODES else ():
        if key not in known:
            yield f"{prefix}{key}"
        elif isinstance(value, ConfigDict) and key not in FILTER_KEYS:
            yield from _unknown(known[key], value, f"{prefix}{key}.")
