"""Scan and Snap: which tokens one layer of attention finds, how fast, and when it stops (Theorems 3 and 4)."""

from joma.studies.scan_snap.scan_snap.study import STUDY

__all__ = ["STUDY"]
