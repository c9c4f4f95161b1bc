"""The measurements of each fault as the table of docs/results/faults.md, with four totals."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.clock import SECOND
from tests.faults.checks import Trial, wrong

COLUMNS = (
    "fault",
    "topology",
    "out for",
    "load held",
    "p99, longest answer",
    "degraded",
    "over-admitted (bound)",
    "recovered after",
    "counts lost",
    "notes",
)

NOT_PERMITTED = "not permitted here"


def row(trial: Trial) -> list[str]:
    during = trial.during
    degraded = sum(answer.degraded for answer in during)
    due = trial.sent + trial.not_sent
    over, limit = trial.worst
    findings = wrong(trial)
    return [
        trial.fault,
        trial.topology,
        f"{(trial.ended - trial.began) / SECOND:.1f} s",
        f"{_share(trial.sent, due)} of {due:,}",
        f"{trial.slowest(0.99) / 1_000:.0f}, {trial.longest / 1_000:.0f} ms",
        _share(degraded, len(during)),
        f"{max(over, 0)} of {limit} ({trial.budgets * limit} + {trial.hosts})",
        f"{trial.recovery / SECOND:.2f} s",
        f"{trial.lost} of {trial.counted}",
        "; ".join([*(f"**WRONG** {finding}" for finding in findings), *trial.notes]),
    ]


def missing(fault: str, topology: str) -> list[str]:
    return [fault, topology, *[""] * (len(COLUMNS) - 3), NOT_PERMITTED]


def totals(trials: Sequence[Trial]) -> list[str]:
    """Over all faults, from when each began."""
    answers = [answer for trial in trials for answer in trial.during]
    asked = len(answers) + sum(trial.hung + trial.not_sent for trial in trials)
    answered = sum(not answer.error for answer in answers)
    own = sum(not answer.degraded and not answer.error for answer in answers)
    slowest = max(trials, key=lambda trial: trial.recovery)
    lost, counted = sum(trial.lost for trial in trials), sum(trial.counted for trial in trials)
    return [
        f"availability of answers: {_fine_share(answered, asked)} of {asked:,} (goal 99.99 %)",
        f"availability of undegraded answers, while something is broken: {_share(own, asked)}",
        f"longest recovery: {slowest.recovery / SECOND:.2f} s, {slowest.fault} (goal < 30 s)",
        f"counts lost: {_share(lost, counted)}, {lost:,} of {counted:,} (goal ≤ 5 %)",
    ]


def markdown(rows: Sequence[Sequence[str]], trials: Sequence[Trial]) -> str:
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n" + "\n".join(f"- {total}" for total in totals(trials))


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _fine_share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3f} %" if whole else "-"
