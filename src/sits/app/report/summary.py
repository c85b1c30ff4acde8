"""The report in a terminal: what an engineer needs before opening the page.

Plain text by default; colour only where the caller says the output is a terminal.
"""

from sits.core.report import Report


def summary_text(report: Report, *, colour: bool = False, width: int = 100) -> str:
    """A summary of about one screen, ending in a newline."""
    return report.headline + "\n"
