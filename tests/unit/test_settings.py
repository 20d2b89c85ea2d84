"""Where a setting comes from: defaults, file, variables, command line, each stronger than the one before."""

from pathlib import Path

import pytest

from orbit.errors import InvalidRequest
from orbit.settings import FILE_VARIABLE, settings_load


def test_each_source_is_stronger_than_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("port: 1001\nhost: file\nprocesses: 2\n")
    environment = {FILE_VARIABLE: str(file), "ORBIT_PORT": "1002", "ORBIT_HOST": "variable", "ORBIT_URL": "http://x"}
    loaded = settings_load(environment=environment, options={"port": 1003, "processes": None})
    assert (loaded.port, loaded.host, loaded.processes, loaded.log_level) == (1003, "variable", 2, "INFO")
    assert settings_load(environment={}).port == 8080


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("prot: 1", "prot"),
        ("port: 70000", "port"),
        ("- a", "by name"),
        ("port: [", "YAML"),
        ("log_level: LOUD", "log_level"),
    ],
)
def test_a_wrong_file_is_named_with_its_setting(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=word) as refused:
        settings_load(file=file, environment={})
    assert str(file) in refused.value.message


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(InvalidRequest, match="port"):
        settings_load(environment={"ORBIT_PORT": "eighty"})
    with pytest.raises(InvalidRequest, match=r"can't be read"):
        settings_load(environment={FILE_VARIABLE: "/nowhere/settings.yaml"})
