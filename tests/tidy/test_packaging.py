"""What is declared, what is in the tree and what ends up in the wheel are the same six packages."""

import configparser
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support.declared import PACKAGES, ROOT, module_paths


def test_setup_lists_every_package() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = setup["options"]["packages"].split()
    in_tree = sorted(
        ".".join(path.parent.relative_to(ROOT).parts)
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
    )
    assert listed == in_tree


def test_a_wheel_holds_every_module_and_nothing_else(tmp_path: Path) -> None:
    # Built from a copy, so that no build folder is left in the tree.
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    for package in (*PACKAGES, "tests", "tools"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*command, str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in files} == set(PACKAGES)
    modules = {path.relative_to(ROOT).as_posix() for path in module_paths()}
    assert {name for name in files if name.endswith(".py")} == modules
