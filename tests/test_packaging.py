"""What a user gets: a wheel that installs `assay/`, its metadata and one program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

IN_CI = "CI" in os.environ
"""Asked when the file is imported: tests themselves do not see this variable."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources as `python -m build` does it."""
    folder = tmp_path_factory.mktemp("packaging")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("cli", "engine", "plans", "tests", "docs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed into it, without what it depends on."""
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--no-compile", "--target", target, wheel], check=True)
    return target


def test_only_assay_is_installed(installed: Path) -> None:
    """An installed assay adds one package, its metadata and `bin/assay`, and nothing else."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {path.name for path in installed.iterdir()} == {
        "assay",
        f"assay-{version}.dist-info",
        "bin",
    }
    assert [path.name for path in (installed / "bin").iterdir()] == ["assay"]
    assert {path.name for path in (installed / "assay").iterdir()} == {"cli", "engine", "plans"}


def test_every_module_is_in_the_wheel(wheel: Path) -> None:
    """No module of the source folders is forgotten, each part says that it is typed, and the
    licence comes along."""
    expected = {
        f"assay/{path.relative_to(ROOT)}"
        for part in ("cli", "engine", "plans")
        for path in [*(ROOT / part).rglob("*.py"), ROOT / part / "py.typed"]
    }
    names = set(zipfile.ZipFile(wheel).namelist())
    assert expected == {name for name in names if name.startswith("assay/")}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_installed_program_runs(installed: Path, tmp_path: Path) -> None:
    """`bin/assay` of the wheel runs a plan with the modules that came with it."""
    (tmp_path / "plan.toml").write_text(
        '[nodes.hello]\nrun = "echo hello > out"\nwrites = ["out"]\n'
    )
    done = subprocess.run(
        [installed / "bin" / "assay", "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_text() == "hello\n"


@pytest.mark.skipif(not IN_CI, reason="developers test an editable installation")
def test_ci_tests_what_is_installed() -> None:
    """In CI `assay` is what pip installed, not the folders of the checkout."""
    import assay.cli
    import assay.engine
    import assay.plans

    installed = Path(sysconfig.get_path("purelib")).resolve()
    for part in (assay.cli, assay.engine, assay.plans):
        assert part.__file__ is not None
        assert Path(part.__file__).resolve().is_relative_to(installed)
