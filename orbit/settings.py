"""Settings of a node and its commands: defaults, then a YAML file, then `ORBIT_*` variables, then the command line.

Each later source wins. A setting named in the file that does not exist is an error; unknown variables are not, since
clients have some of their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta

from orbit.errors import InvalidRequest

FILE_VARIABLE = "ORBIT_SETTINGS_FILE"
PORT_DEFAULT = 8080

Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator can set; `ORBIT_` and the name in capitals is the variable of each."""

    database_url: str = "sqlite:///.orbit/orbit.db"
    database_pool_size: Annotated[int, Meta(ge=1, le=200)] = 8
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = PORT_DEFAULT
    processes: Annotated[int, Meta(ge=1, le=128)] = 1
    node_name: Annotated[str, Meta(max_length=100)] = ""  # empty: host name and process id
    log_level: Annotated[str, Meta(pattern=r"\A(?:DEBUG|INFO|WARNING|ERROR)\Z")] = "INFO"
    drain_seconds: Seconds = 25.0
    tls_cert: str = ""
    tls_key: str = ""


def settings_load(
    *, file: Path | None = None, environment: Mapping[str, str] | None = None, options: Mapping[str, Any] | None = None
) -> Settings:
    """Return the settings; an option that is None was not given.

    Raises InvalidRequest that names the source and the setting that is wrong.
    """
    variables = os.environ if environment is None else environment
    path = file if file is not None else Path(variables[FILE_VARIABLE]) if variables.get(FILE_VARIABLE) else None
    known = Settings.__struct_fields__
    values = {} if path is None else _from_file(path)
    values |= {name: variables[f"ORBIT_{name.upper()}"] for name in known if variables.get(f"ORBIT_{name.upper()}")}
    values |= {name: value for name, value in (options or {}).items() if value is not None}
    return _converted(values, "the settings")


def _from_file(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        message = f"{path} can't be read as YAML: {error}"
        raise InvalidRequest(message) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        message = f"{path} does not hold settings by name"
        raise InvalidRequest(message)
    _converted(content, str(path))
    return content


def _converted(values: Mapping[str, Any], source: str) -> Settings:
    try:
        # Variables are text: "8080" is a number where one is wanted.
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        message = f"{source}: {error}"
        raise InvalidRequest(message) from None
