"""The ledger of all claims and their figures as one self-contained HTML page, and the page of a scan."""

from typing import TYPE_CHECKING

from joma.host.doors import opener

if TYPE_CHECKING:
    from joma.report.page import write_report
    from joma.report.scans.page import write_atlas, write_comparison, write_scan_page
    from joma.report.scans.shown import ShownScan, read_scan, scan_runs, show_scan

__all__ = [
    "ShownScan", "read_scan", "scan_runs", "show_scan", "write_atlas", "write_comparison", "write_report",
    "write_scan_page",
]  # fmt: skip
__getattr__ = opener(__name__, __all__, ("page", "scans.page", "scans.shown"))


def __dir__() -> list[str]:
    return __all__
