"""The fault suite: every test adds to a table, which ends the run.

Nodes talk in a domain of their own, as those of test/ros do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from faults.tally import Report, Row
from ros import conftest as domain

REPORT, ROW = pytest.StashKey[Report](), pytest.StashKey[Row]()
weights = domain.weights


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Report:
    """The table that ends the run: `report.row("kind of fault")` is a row to count in."""
    return request.config.stash.setdefault(REPORT, Report())


# Modules that know nothing of the table: their files, or else their tests, are counted here.
ELSEWHERE = {
    "test_files": "damaged files",
    "test_bombs": "bombs in files",
    "test_commands": "commands ended, refused, or without a disk",
}


@pytest.fixture(autouse=True)
def _tallied(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count a test of another module in the table, and the memory that it measures."""
    kind, module = ELSEWHERE.get(request.path.stem), request.module
    if kind is None:
        return
    row = request.getfixturevalue("report").row(kind)
    request.node.stash[ROW] = row
    if request.path.stem == "test_files":
        damage = module.damaged

        def damaged(*arguments: Any) -> None:
            row.tried += 1
            damage(*arguments)

        monkeypatch.setattr(module, "damaged", damaged)
        return
    row.tried += 1
    if request.path.stem == "test_bombs":
        run, idle, peaks = module.run, module.idle, []

        def measured(*arguments: object) -> tuple[int, list[str], float]:
            outcome: tuple[int, list[str], float] = run(*arguments)
            peaks.append(outcome[2])
            return outcome

        def above(*arguments: Any) -> float:
            peak, least = peaks[-1], float(idle(*arguments))
            row.memory_mb = max(row.memory_mb, peak - least)
            return least

        monkeypatch.setattr(module, "run", measured)
        monkeypatch.setattr(module, "idle", above)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    """A test of another module that fails is a crash."""
    result = yield
    row = item.stash.get(ROW, None)
    if row is not None and call.when == "call" and result.get_result().failed:
        row.crash(item.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The whole suite succeeds where its table does, whatever is expected to fail."""
    report = session.config.stash.get(REPORT, None)
    whole = not session.config.getoption("markexpr")
    if whole and report is not None and not all(row.good for row in report.rows.values()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the table."""
    report = config.stash.get(REPORT, None)
    if report is not None and report.rows:
        terminalreporter.section("faults")
        for line in report.lines():
            terminalreporter.write_line(line)
