"""Keep a MariaDB and a MySQL running between test runs, for whoever starts tests often.

    python -m tests.support.databases start --dir DIR [--durable] [--kind mysql]
    python -m tests.support.databases stop --dir DIR

`start` prints two `export` lines for the shell; with those variables set, test runs use these servers and make
databases of their own in them. The servers run until `stop`.
"""

import argparse
import sys
from pathlib import Path

from tests.support.servers import Kind, Server, ServerMissingError, server_start, server_stop


def environment_name(kind: Kind) -> str:
    """Name the variable that points a test run at a running server."""
    return f"ORBIT_TEST_{kind.upper()}_URL"


def start(folder: Path, kinds: list[Kind], *, durable: bool) -> None:
    """Start the servers that do not run yet and print how to reach them."""
    for kind in kinds:
        state = folder / f"{kind}.json"
        server = Server.load(state) if state.exists() else None
        if server is None or not Path(f"/proc/{server.pid}").exists():
            try:
                server = server_start(kind, folder / kind, durable=durable)
            except ServerMissingError as error:
                print(f"# {error}", file=sys.stderr)
                continue
            server.save(state)
        print(f"export {environment_name(kind)}={server.url}")


def stop(folder: Path) -> None:
    """End the servers that `start` left running under this folder; their data stays."""
    for state in folder.glob("*.json"):
        server_stop(Server.load(state).pid, at_once=False)
        state.unlink()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["start", "stop"])
    parser.add_argument("--dir", type=Path, required=True, help="holds the servers' data; a short path")
    parser.add_argument("--kind", type=Kind, action="append", help="mariadb or mysql; both if not given")
    parser.add_argument("--durable", action="store_true", help="flush every commit to disk")
    options = parser.parse_args()
    if options.command == "start":
        start(options.dir.resolve(), options.kind or list(Kind), durable=options.durable)
    else:
        stop(options.dir.resolve())


if __name__ == "__main__":
    main()
