"""A picture of the page, for the docs, from real runs:

python tests/picture.py docs/images/view.png '#/' runs/a runs/b      [--width 1280] [--height 800] [--theme dark]
"""

import argparse
from pathlib import Path

from browser import browser
from understudy.viewer.library import Library
from viewing import served


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("where", help="the address from # on")
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=800)
    parser.add_argument("--theme", choices=["light", "dark"], default="light")
    options = parser.parse_args()
    size = {"width": options.width, "height": options.height}
    with served(Library(options.runs)) as address, browser() as chromium:
        page = chromium.new_page(viewport=size, color_scheme=options.theme)
        page.goto(f"{address}/{options.where}")
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(1500)  # for what is asked for after that, and the drawing
        page.screenshot(path=options.file)


if __name__ == "__main__":
    main()
