"""docs/headers.md tells the truth: its code runs, prints what the page shows, and every header shown was printed."""

import contextlib
import io
import re
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "headers.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN_HEADER = re.compile(r"`([A-Z][A-Za-z-]+: [^`]+)`")


def printed_by_the_page() -> list[tuple[str, str]]:
    """What each example of the page really prints, beside what the page says it does."""
    names: dict[str, object] = {}
    results = []
    for code, promised in EXAMPLE.findall(PAGE):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(code, names)
        results.append((output.getvalue(), promised))
    return results


def test_every_example_prints_what_the_page_shows() -> None:
    results = printed_by_the_page()
    assert len(results) == PAGE.count("```python\n") > 0, "an example without its output"
    for printed, promised in results:
        assert printed == promised


def test_every_header_in_running_text_was_printed_by_an_example() -> None:
    printed = "".join(printed for printed, _ in printed_by_the_page())
    shown = SHOWN_HEADER.findall(PAGE)
    assert shown
    for header in shown:
        assert f" {header}\n" in printed, header
