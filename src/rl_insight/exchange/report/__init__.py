"""The report: one HTML file that shows a run, with its data inside."""

from rl_insight.exchange.report.document import build_document, check_scope
from rl_insight.exchange.report.model import ReportDocument
from rl_insight.exchange.report.page import render, write_report

__all__ = ["ReportDocument", "build_document", "check_scope", "render", "write_report"]
