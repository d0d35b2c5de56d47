"""Packages that offer studies, as somebody else's would: installed for one test, with a mark where one is imported."""

from __future__ import annotations

import sys

from joma.studies import foreign


class Site:
    def __init__(self, folder):
        self.folder, self._made = folder, list[str]()
        folder.mkdir()
        self._marks = folder / "imported"

    def offer(self, name, source, *, attribute="STUDY"):
        package = f"of_{name.replace('-', '_')}"
        about = self.folder / f"{package}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[{foreign.GROUP}]\n{name} = {package}:{attribute}\n")
        self._made.append(package)
        if source is not None:
            mark = f"with open({str(self._marks)!r}, 'a') as marks: marks.write({package + chr(10)!r})\n"
            head, future, rest = source.rpartition("from __future__ import annotations\n")
            (self.folder / f"{package}.py").write_text(f"{head}{future}{mark}{rest}", encoding="utf-8")
        foreign._offered.cache_clear()

    def imported(self):
        return self._marks.read_text().split() if self._marks.exists() else []

    def forget(self):
        for package in self._made:
            sys.modules.pop(package, None)
        foreign._NAMED.clear()
        foreign._offered.cache_clear()
