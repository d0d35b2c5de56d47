r"""The picture of docs/how-to/view.md: a screen of `joma view`, photographed by an installed chromium.

python docs/view_picture.py results/fig6 docs/_static/view.png \
  '#?screen=curves&series=L5/valid/entropy&by.dim_0=interval'
"""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from joma.view import Feed, write_page

QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


def main() -> None:
    source, picture, screen = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        write_page(Feed([source]), Path(folder, "page.html"))
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(QUIET))
        page = browser.new_page(viewport={"width": 1100, "height": 700})
        page.goto(Path(folder, "page.html").as_uri() + screen)
        page.locator(".legend li").first.wait_for()
        page.wait_for_timeout(300)  # fonts and canvas
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main()
