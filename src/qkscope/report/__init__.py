"""The interactive report: one HTML file with its data, its script and its style inside, and no network."""

from qkscope.report.page import SCRIPTS, json_for_html, policy, render, write_report

__all__ = ["SCRIPTS", "json_for_html", "policy", "render", "write_report"]
