"""The built distributions: what they hold and promise, and that they work where nothing else is installed."""

from __future__ import annotations

import configparser
import email.message
import email.parser
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import toolnexus

ROOT = Path(__file__).resolve().parents[1]

#: What `import toolnexus` may load beside the standard library: the core dependencies and theirs.
CORE = {
    "attr",
    "attrs",
    "certifi",
    "charset_normalizer",
    "idna",
    "requests",
    "sseclient",
    "toolnexus",
    "urllib3",
}


def configuration() -> configparser.ConfigParser:
    """Return setup.cfg as setuptools reads it."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def requirement_names(lines: str) -> set[str]:
    """Return the normalised names of the packages in a list of requirements."""
    names = (re.split(r"[\[<>=!~; ]", line.strip())[0] for line in lines.splitlines())
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names if name and not name.startswith("#")}


def run(*command: str | Path, cwd: Path, **extra: str) -> str:
    """Run a command and return what it printed; its whole output is in the failure."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, cwd=cwd, env=env | extra, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel from the sdist, in a folder of their own."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT, cwd=out)
    return out


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    """Return the built wheel."""
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture
def metadata(wheel: Path) -> email.message.Message:
    """Return the wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return email.parser.Parser().parsestr(archive.read(name).decode("utf-8"))


@pytest.mark.slow
def test_wheel_metadata_says_what_setup_cfg_says(metadata: email.message.Message) -> None:
    """No key of setup.cfg was dropped: name, version, licence, interpreter and extras are in the wheel."""
    from toolnexus._version import __version__

    assert metadata["Name"] == "toolnexus"
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "# toolnexus" in str(metadata.get_payload())
    assert set(metadata.get_all("Provides-Extra", [])) == set(configuration()["options.extras_require"])


@pytest.mark.slow
def test_wheel_requires_only_the_core(metadata: email.message.Message) -> None:
    """What is installed without an extra is what setup.cfg lists, and nothing more."""
    core = [r for r in metadata.get_all("Requires-Dist", []) if "extra ==" not in r]
    wanted = configuration()["options"]["install_requires"]
    assert requirement_names("\n".join(core)) == requirement_names(wanted)
    assert requirement_names(wanted) == {"attrs", "requests", "sseclient-py", "urllib3"}


@pytest.mark.slow
def test_wheel_holds_the_whole_package_and_nothing_else(wheel: Path) -> None:
    """Every file of the package is in the wheel, `py.typed` too; tests and docs are not."""
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
    package = {p.relative_to(ROOT).as_posix() for p in (ROOT / "toolnexus").rglob("*.py")}
    assert names >= package | {"toolnexus/py.typed"}
    assert {n.split("/")[0] for n in names} == {"toolnexus"}


@pytest.mark.slow
def test_sdist_holds_what_is_needed_to_work_on_it(dist: Path) -> None:
    """The sdist carries tests, docs, Makefile, changelog and licence."""
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    wanted = {"CHANGELOG.md", "LICENSE", "Makefile", "README.md", "docs/index.md", "docs/conf.py"}
    assert names >= wanted | {"ruff.toml", "scripts/venv", "tests/conftest.py", "toolnexus/py.typed"}
    assert not [n for n in names if n.endswith(".pyc") or "_build" in n]


@pytest.mark.slow
def test_wheel_works_where_only_the_core_is_installed(wheel: Path, tmp_path: Path) -> None:
    """A fresh environment with the wheel imports it, and loads no package beside the core dependencies."""
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    code = (
        "import sys, toolnexus, toolnexus.testing;"
        "names = {n.partition('.')[0] for n, m in sys.modules.items() if getattr(m, '__spec__', None)};"
        "print(*sorted(names - set(sys.stdlib_module_names)))"
    )
    loaded = {n for n in run(python, "-c", code, cwd=tmp_path).split() if not n.startswith("_")}
    assert "toolnexus" in loaded
    assert loaded <= CORE


def test_lowest_versions_are_the_bounds_of_setup_cfg() -> None:
    """`make test-lowest` runs with exactly the versions that setup.cfg promises to work with."""
    promised = re.findall(r"^([\w-]+)>=([\d.]+)$", configuration()["options"]["install_requires"], re.M)
    pinned = re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "tests" / "lowest.txt").read_text("utf-8"), re.M)
    assert [name for name, _ in promised] == [name for name, _ in pinned]
    for (_, low), (_, pin) in zip(promised, pinned, strict=True):
        assert (pin + ".0").startswith(low), (low, pin)


def test_all_extra_is_every_extra_for_users() -> None:
    """The extra `all` leaves none out but those that only the work on toolnexus needs."""
    extras = configuration()["options.extras_require"]
    (named,) = re.findall(r"^toolnexus\[(.*)\]$", extras["all"].strip())
    ours = {"all", "dev", "docs", "lint", "test", "test-model", "types"}
    assert set(named.split(",")) == set(extras) - ours


def test_extras_that_the_code_names_exist() -> None:
    """Each extra that an error message tells to install is one that setup.cfg has."""
    pattern = re.compile(r"""need\(\s*["'][\w.]+["'],\s*["']([\w-]+)["']""")
    files = (ROOT / "toolnexus").rglob("*.py")
    named = {extra for path in files for extra in pattern.findall(path.read_text("utf-8"))}
    assert named <= set(configuration()["options.extras_require"])


def test_no_module_stands_in_the_way_of_a_name() -> None:
    """No package exports a name that a module of it has: importing that would take the name's place."""
    packages = [m.name for m in pkgutil.walk_packages(toolnexus.__path__, "toolnexus.") if m.ispkg]
    for name in ["toolnexus", *packages]:
        package = importlib.import_module(name)
        modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
        assert not modules & set(getattr(package, "__all__", ())), name
