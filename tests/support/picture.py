"""Take a screenshot of the viewer's page with real runs, for the documentation:

PYTHONPATH=tests python -m support.picture docs/images/view.png '#/' runs/a runs/b [--width 1280] [--height 800]
    [--theme dark]
"""

import argparse
from pathlib import Path

from support.browser import browser
from support.viewing import serve_viewer
from understudy.viewer.library import RunLibrary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("where", help="part of the address from # on")
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=800)
    parser.add_argument("--theme", choices=["light", "dark"], default="light")
    options = parser.parse_args()
    size = {"width": options.width, "height": options.height}
    with serve_viewer(RunLibrary(options.runs)) as address, browser() as chromium:
        page = chromium.new_page(viewport=size, color_scheme=options.theme)
        page.goto(f"{address}/{options.where}")
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(1500)  # milliseconds for later requests and for drawing
        page.screenshot(path=options.file)


if __name__ == "__main__":
    main()
