"""`env.plugins`: modules and files, imported once, wherever a config is loaded; every failure is one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from linnaeus_jax.config import ConfigError, get_config, load_config, load_yaml
from linnaeus_jax.config.plugins import import_plugins
from linnaeus_jax.config.saved import config_from_json
from linnaeus_jax.registry import HEADS, MODELS, OPTIMIZERS, Registry
from tests.extending.common import EXAMPLES
from tests.plugins import forget_plugins, plugins_kept


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


def test_what_a_plugin_registers_goes_and_comes_with_its_module():
    """Of the tests' own helper: a module that is imported while what it registered is gone would break later tests."""
    config = get_config()
    config.env.plugins = (str(EXAMPLES / "model_example.py"),)
    with plugins_kept():
        import_plugins(config)
        before = MODELS["SmallNet"]
        with plugins_kept():
            forget_plugins()
            assert "SmallNet" not in MODELS.entries
            import_plugins(config)
            assert MODELS["SmallNet"] is not before
            forget_plugins()
        import_plugins(config)
        assert MODELS["SmallNet"] is before
    assert "SmallNet" not in MODELS.entries


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


PLUGIN = """
from linnaeus_jax.registry import HEADS, OPTIMIZERS

@OPTIMIZERS.register("plugin_signum")
def signum(*, beta: float = 0.9, nesterov: bool = False): ...

@HEADS.register("PluginCosine")
class Cosine:
    def __init__(self, num_classes, *, scale: float = 16.0): ...
"""


@pytest.fixture
def options(here):
    (here / "options_plugin.py").write_text(PLUGIN)
    (here / "config.py").write_text("from linnaeus_jax.config import get_config\n")
    yield here
    for registry, name in ((OPTIMIZERS, "plugin_signum"), (HEADS, "PluginCosine")):
        registry.entries.pop(name, None)


def test_options_of_plugins_are_keys_of_the_tree(options):
    flags = ["--config=config.py", "--config.env.plugins=options_plugin"]
    assert "plugin_signum" not in load_config(flags[:1])[0].optimizer
    config, _ = load_config(
        [
            "--config=config.py",
            "--config.model.classification.heads.taxa_L10.scale=4",
            "--config.model.classification.heads.taxa_L10.type=PluginCosine",
            "--config.optimizer.plugin_signum.beta=0.5",
            "--config.env.plugins=options_plugin",
        ]
    )
    assert config.optimizer.plugin_signum.to_dict() == {"beta": 0.5, "nesterov": False}
    assert config.model.classification.heads.to_dict() == {"taxa_L10": {"type": "PluginCosine", "scale": 4.0}}
    assert config_from_json(config.to_dict()).to_dict() == config.to_dict()
    with pytest.raises(ConfigError, match=r"optimizer.plugin_signum.bta: unknown key; did you mean .*beta"):
        load_config([*flags, "--config.optimizer.plugin_signum.bta=0.5"])
    with pytest.raises(ConfigError, match=r"plugin_signum.beta = 'much': expected a number"):
        load_config([*flags, "--config.optimizer.plugin_signum.beta=much"])


def test_options_of_plugins_are_keys_of_yaml(options):
    (options / "experiment.yaml").write_text(
        "ENV: {PLUGINS: [options_plugin]}\n"
        "OPTIMIZER: {NAME: plugin_signum, PLUGIN_SIGNUM: {BETA: 0.25}}\n"
        "MODEL: {CLASSIFICATION: {HEADS: {taxa_L10: {TYPE: PluginCosine, SCALE: 2}}}}\n"
    )
    config = load_yaml(options / "experiment.yaml")
    assert config.optimizer.plugin_signum.beta == 0.25
    assert config.model.classification.heads.taxa_L10.to_dict() == {"type": "PluginCosine", "scale": 2.0}


def test_a_name_is_registered_once(here):
    registry: Registry = Registry("thing", "a.b", "a")

    def one(*, x: int = 1, y=2): ...

    assert registry.register("one")(one) is one
    registry.register("one")(one)  # the same source again
    with pytest.raises(ValueError, match="thing 'one' is registered twice"):
        registry.register("one")(lambda: None)
    with pytest.raises(ValueError, match=r"a\.b = 'two' is unknown; choose one of one"):
        registry["two"]
    assert registry.options("one") == {"x": 1, "y": 2}


def test_the_name_of_a_built_in_thing_is_taken(here):
    """In a process of its own, where the plugin comes before the module that registers the built-in one."""
    (here / "greedy.py").write_text(PLUGIN.replace("plugin_signum", "adamw"))
    (here / "config.py").write_text("from linnaeus_jax.config import get_config\n")
    command = [sys.executable, "-m", "linnaeus_jax.main", "--config=config.py", "--config.env.plugins=greedy.py"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, "optimizer 'adamw' is registered twice; choose another name\n")


@pytest.mark.parametrize("name", [3, {1: 2}, None])
def test_a_plugin_is_named_by_a_text(name):
    config = get_config()
    config.env.plugins = (name,)
    with pytest.raises(ConfigError, match=r"env\.plugins holds .*; each entry is the name"):
        import_plugins(config)
