"""Where weights lie that are named instead of given as a path.

package:NAME         a file that an installed Python package ships; none of the package's code is imported
hf:OWNER/REPO[/FILE] a file of a repository of the Hugging Face hub, kept in its cache
timm:NAME            hf:timm/NAME
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from linnaeus_jax.config.errors import UserError, described
from linnaeus_jax.weights.files import INDEX_SUFFIX, SUFFIXES, shards_of
from linnaeus_jax.weights.formats.base import known_weights
from linnaeus_jax.weights.hub_settings import DESCRIPTIONS

#: how a name of weights begins -> what must follow
SCHEMES = {
    "package": "the name of a Python package, such as package:efficientnet-lite0",
    "hf": "a repository and perhaps a file of it, as in hf:OWNER/REPO/FILE",
    "timm": "the name of a model, such as timm:tf_efficientnet_lite0.in1k",
}
#: those that are fetched from the hub
FETCHED = ("hf", "timm")
#: files of a repository that are looked for where none is named; the last are OpenCLIP's, and indexes of several files
HUB_FILES = (
    *("model.safetensors", "pytorch_model.bin", "open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
    *("model.safetensors.index.json", "pytorch_model.bin.index.json"),
)


def scheme_of(name: str) -> str:
    """How a name of weights begins; "" of a path."""
    scheme = str(name).partition(":")[0]
    return scheme if scheme in SCHEMES and ":" in str(name) else ""


def name_errors(name: str, key: str) -> list[str]:
    """What is wrong with the form of a name; one line with key, value and fix."""
    scheme, rest = scheme_of(name), str(name).partition(":")[2]
    parts = rest.split("/")
    bad = not all(parts) or ".." in parts or rest != rest.strip() or (scheme == "hf") != (len(parts) > 1)
    return [f"{key} = {name!r} is incomplete; after {scheme}: comes {SCHEMES[scheme]}"] if scheme and bad else []


def located(name: str | Path, key: str = "model.pretrained") -> str | Path:
    """The file of a name; a path as it is given.

    Args:
      key: what holds the name, for messages.

    Raises:
      UserError: the form of the name, a package that is not installed or ships no such file, a repository that cannot
        be reached or has none. The message says how the file is had.
    """
    scheme = scheme_of(str(name))
    if not scheme:
        return name
    if errors := name_errors(str(name), key):
        raise UserError(errors[0])
    rest = str(name).partition(":")[2]
    where = f"{key} = {str(name)!r}"
    if scheme == "package":
        return _of_package(rest, where)
    with _hub_is_asked():
        return _of_hub(f"timm/{rest}" if scheme == "timm" else rest, where)


def located_with_description(name: str | Path, key: str = "model.pretrained") -> str | Path:
    """As `located`; of a file of the hub, what `hub_settings` reads lies beside it then, as far as it can be had."""
    if scheme_of(str(name)) not in FETCHED:
        return located(name, key)
    with _hub_is_asked():
        path = located(name, key)
        import huggingface_hub

        repository, folder = _repository(str(name))
        for file in DESCRIPTIONS:
            with contextlib.suppress(Exception):  # there is none; or it cannot be had, and what it says is asked for
                huggingface_hub.hf_hub_download(repository, f"{folder}{file}")
    return path


@contextlib.contextmanager
def _hub_is_asked() -> Iterator[None]:
    """Keeps the hub's library from a line for every attempt; its settings are restored afterwards."""
    with contextlib.suppress(ImportError):  # which is told where it is needed
        import huggingface_hub.constants
        import huggingface_hub.utils.logging  # noqa: F401  # which sets the level when it is imported
    log, constants = logging.getLogger("huggingface_hub"), sys.modules.get("huggingface_hub.constants")
    before = log.level, getattr(constants, "HF_HUB_OFFLINE", None)
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before[0])
        if constants is not None:
            constants.HF_HUB_OFFLINE = before[1]  # type: ignore[attr-defined]


def _ask_no_more() -> None:
    """Lets the hub's library look only into its cache, instead of waiting again for a network that is not there."""
    if constants := sys.modules.get("huggingface_hub.constants"):
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def _repository(name: str) -> tuple[str, str]:
    """OWNER/REPO of a name of the hub, and the folder of its file with a slash, "" at the top."""
    scheme, _, rest = name.partition(":")
    owner, repository, *file = (f"timm/{rest}" if scheme == "timm" else rest).split("/")
    return f"{owner}/{repository}", "".join(f"{part}/" for part in file[:-1])


def _of_package(name: str, where: str) -> Path:
    package = next((known.package for known in known_weights() if known.package and known.name == name), name)
    try:
        files = importlib.metadata.distribution(package).files or []
    except (importlib.metadata.PackageNotFoundError, ValueError) as error:
        raise UserError(f"{where}: the package is not installed; install it with: pip install {package}") from error
    paths = [Path(str(file.locate())) for file in files if file.suffix in SUFFIXES]
    found = [path for path in paths if path.is_file()]
    if len(found) != 1:
        shown = ", ".join(str(path) for path in found[:5]) or f"none of {', '.join(SUFFIXES)}"
        raise UserError(
            f"{where}: one file of weights is needed, but the package {package} ships {shown}; give the path of one"
        )
    return found[0]


def _of_hub(name: str, where: str) -> Path:
    owner, repository, *rest = name.split("/")
    repository = f"{owner}/{repository}"
    candidates = ("/".join(rest),) if rest else HUB_FILES
    bare = repository.removeprefix("timm/").partition(".")[0]
    if importlib.util.find_spec("huggingface_hub") is None:
        raise UserError(f"{where} needs the package huggingface_hub; install it with: pip install huggingface_hub")
    import huggingface_hub
    from huggingface_hub import errors

    unreachable: Any = None
    for file in candidates:
        try:
            path = Path(huggingface_hub.hf_hub_download(repository, file))
            folder = file.rpartition("/")[0]
            for shard in shards_of(path) if file.endswith(INDEX_SUFFIX) else ():
                huggingface_hub.hf_hub_download(repository, f"{folder}/{shard}".lstrip("/"))
            return path
        except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
            unreachable = error
            _ask_no_more()
        except errors.EntryNotFoundError:
            continue
        except errors.RepositoryNotFoundError as error:
            if type(error).__name__ == "GatedRepoError":
                raise UserError(
                    f"{where}: {repository} asks for consent to its licence; give it on the page "
                    f"https://huggingface.co/{repository}, then log in with: hf auth login"
                ) from error
            tag = "; timm's names have a tag, such as convnext_tiny.fb_in22k" if repository == f"timm/{bare}" else ""
            raise UserError(
                f"{where}: there is no repository {repository}, or it is not public; check the name{tag}"
            ) from error
        except Exception as error:  # of the network, in the classes of whatever library the hub uses
            text = described(error) if isinstance(error, OSError) else " ".join(str(error).split())
            raise UserError(f"{where} cannot be fetched: {text[:300]}; {_by_hand(repository, file)}") from error
    if unreachable is not None:
        raise UserError(
            f"{where} is not in the cache, and the hub cannot be reached; {_by_hand(repository, candidates[0])}"
        ) from unreachable
    raise UserError(f"{where}: {repository} has no {' or '.join(candidates)}; name the file: hf:{repository}/FILE")


def _by_hand(repository: str, file: str) -> str:
    return (
        f"fetch https://huggingface.co/{repository}/resolve/main/{file} on another machine, put it on this one, with "
        "the repository's config.json beside it, and give its path"
    )
