"""The ledger of all claims and their figures as one self-contained HTML page."""

from __future__ import annotations

from joma.claims.ledger import findings_json
from joma.report.page import write_report
from joma.report.scans import Scan, read_scan, scan_runs

__all__ = ["Scan", "findings_json", "read_scan", "scan_runs", "write_report"]
