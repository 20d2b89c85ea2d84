"""Say at the end of a run how many tests ran on each database, and say it loudly if MySQL was left out."""

from collections import Counter, defaultdict

import pytest


class DatabaseReport:
    """Counts outcomes by database; lives in the process that reports, where the results of all workers arrive."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._missing = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        kind = next((str(value) for name, value in report.user_properties if name == "database"), None)
        if kind is None or not (report.when == "call" or report.outcome != "passed"):
            return
        outcome = "failed" if report.when == "teardown" else report.outcome
        self._counts[kind][outcome] += 1
        if report.skipped and isinstance(report.longrepr, tuple) and "MySQL: " in report.longrepr[2]:
            self._missing = report.longrepr[2]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for kind, counts in sorted(self._counts.items()):
            words = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
            terminalreporter.write_line(f"on {kind}: {words}")
        if self._missing:
            terminalreporter.write_sep("!", "MySQL WAS NOT TESTED", red=True, bold=True)
            terminalreporter.write_line(self._missing, red=True)


def encodable(value: object) -> object:
    """Return a copy of plain data in which every text can be written as UTF-8."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {encodable(key): encodable(inner) for key, inner in value.items()}
        case list():
            return [encodable(inner) for inner in value]
        case tuple():
            return tuple(encodable(inner) for inner in value)
        case _:
            return value
