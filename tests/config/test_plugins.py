"""`env.plugins`: modules and files, imported once, wherever a config is loaded; every failure is one line."""

from __future__ import annotations

import sys

import pytest

from linnaeus_jax.config import ConfigError, get_config, load_config
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.config.saved import config_from_json


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder from which modules are imported; what is imported is gone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_files_and_modules_are_imported_once(here, monkeypatch):
    for name in ("by_file", "by_name"):
        (here / f"{name}.py").write_text("import sys\nsys.plugins_seen.append(__name__)\n")
    seen: list[str] = []
    monkeypatch.setattr(sys, "plugins_seen", seen, raising=False)
    config = get_config()
    config.env.plugins = ("by_file.py", "by_name")
    import_plugins(config)
    assert len(seen) == 2
    assert config.env.plugins == (str(here / "by_file.py"), "by_name")  # found again from any directory
    import_plugins(config)
    again = config_from_json(config.to_dict())
    assert again.env.plugins == config.env.plugins
    assert len(seen) == 2


def test_the_command_line_imports_them(here):
    (here / "config.py").write_text("from linnaeus_jax.config import get_config\n")
    (here / "broken.py").write_text("raise KeyError('what')\n")
    with pytest.raises(ConfigError, match=r"env.plugins: '.*broken.py' cannot be imported: KeyError: 'what'"):
        load_config(["--config=config.py", "--config.env.plugins=broken.py"])
    with pytest.raises(ConfigError, match=r"env.plugins: 'nowhere' cannot be imported: ModuleNotFoundError"):
        load_config(["--config=config.py", "--config.env.plugins=nowhere"])
    with pytest.raises(ConfigError, match=r"absent.py' cannot be imported: FileNotFoundError"):
        load_config(["--config=config.py", "--config.env.plugins=absent.py"])
    (here / "broken.py").write_text("fine = True\n")  # a failed import is tried again
    assert load_config(["--config=config.py", "--config.env.plugins=broken.py"])
