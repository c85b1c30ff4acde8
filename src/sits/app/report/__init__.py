"""A `Report` as people and machines read it: one HTML page, one JSON document, one terminal summary.

The three are views of the same structure and never compute a finding of their own.  Heavy parts (Jinja2, rich)
load when a view is rendered, not when this package is imported.
"""

from sits.app.report.data import check_finite, report_json
from sits.app.report.page import render_html
from sits.app.report.summary import summary_text

__all__ = ["check_finite", "render_html", "report_json", "summary_text"]
