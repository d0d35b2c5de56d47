"""The picture of the README: the top of a report, photographed by an installed chromium.

python docs/report_picture.py joma-out/report.html docs/_static/report.png
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

# Nothing is fetched: the page is one file, and the browser is told to stay quiet.
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


def main() -> None:
    report, picture = Path(sys.argv[1]).resolve(), sys.argv[2]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(QUIET))
        page = browser.new_page(viewport={"width": 1280, "height": 1180})
        page.goto(report.as_uri())
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main()
