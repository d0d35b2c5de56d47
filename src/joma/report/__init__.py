"""The ledger of all claims and their figures as one self-contained HTML page."""

from __future__ import annotations

from joma.claims.ledger import findings_json
from joma.report.page import write_report

__all__ = ["findings_json", "write_report"]
