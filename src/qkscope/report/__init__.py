"""The interactive report: one HTML file with its data, its script and its style inside, and no network."""

from qkscope.report.page import SCRIPTS, headline, json_for_html, policy, render, told, write_report

__all__ = ["SCRIPTS", "headline", "json_for_html", "policy", "render", "told", "write_report"]
