"""Draws the dashboard with Grafana's own components, from a Prometheus that runs.

    npm ci && python deploy/grafana/preview/preview.py http://127.0.0.1:9090 dashboard.png

It is a picture of what Grafana would draw, not of a Grafana: panels, legends, units, colours and
scales come from the component library of its release; the frame around them is drawn here.
"""

from __future__ import annotations

import argparse
import io
import json
import mimetypes
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, Route, sync_playwright

HERE = Path(__file__).parent
DASHBOARD = HERE.parent / "dashboards" / "lacuna.json"
ORIGIN = "http://preview.invalid"
"""Answered by this script alone; what is asked below /api goes on to Prometheus."""
COMPONENTS = HERE / "node_modules" / "@grafana" / "ui" / "dist"
FONTS = {
    f"public/fonts/inter/Inter-{name}.woff2": HERE
    / f"node_modules/@fontsource/inter/files/inter-latin-{weight}-normal.woff2"
    for name, weight in (("Regular", 400), ("Medium", 500))
}
"""Where the components look for Grafana's typeface, and where its npm package has it."""
PAGE = (
    '<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="preview.css">'
    "<script>window.__grafana_public_path__ = '/public/'</script>"
    '<div id="root"></div><script src="preview.js"></script>'
)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
SETTLE_MS = 1500


def bundle(folder: Path) -> None:
    """Build preview.js and preview.css into a folder."""
    program = HERE / "node_modules" / ".bin" / "esbuild"
    if not program.exists():
        sys.exit(f"the components are not installed: run `npm ci` in {HERE}")
    options = ["--bundle", "--minify", "--jsx=automatic", "--log-level=error"]
    options += ['--define:process.env.NODE_ENV="production"', "--external:monaco-editor"]
    subprocess.run(
        [program, "preview.jsx", *options, f"--outfile={folder / 'preview.js'}"],
        cwd=HERE,
        check=True,
    )


def serve(folder: Path, prometheus: str, route: Route) -> None:
    """Answer the page's requests: from files, or by asking Prometheus."""
    address = route.request.url.removeprefix(ORIGIN)
    path = address.split("?")[0].lstrip("/")
    if path == "":
        route.fulfill(body=PAGE, content_type="text/html")
        return
    if path.startswith("api/"):
        route.fulfill(response=route.fetch(url=prometheus.rstrip("/") + address))
        return
    found = FONTS.get(path) or (COMPONENTS if path.startswith("public/") else folder) / path
    if found.is_file():
        route.fulfill(path=found, content_type=mimetypes.guess_type(path)[0])
    else:
        route.fulfill(status=404)


def draw(page: Page, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Draw and photograph; answers what each panel got."""
    page.goto(f"{ORIGIN}/")
    report: list[dict[str, Any]] = page.evaluate(
        "given => window.preview(given)",
        {
            "dashboard": json.loads(arguments.dashboard.read_text()),
            "span": arguments.span,
            "end": 1000 * (arguments.end or int(time.time())),
            "mode": arguments.theme,
            "width": arguments.width,
        },
    )
    page.wait_for_timeout(SETTLE_MS)
    image = Image.open(io.BytesIO(page.locator("#root > div").screenshot())).convert("RGB")
    # A palette makes the file a third as large; k-means keeps the hues of thin lines in it.
    image.quantize(256, kmeans=4).save(arguments.output, optimize=True)
    return report


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("prometheus", help="address of a Prometheus that scrapes a gateway")
    parser.add_argument("output", type=Path, help="the PNG")
    parser.add_argument("--dashboard", type=Path, default=DASHBOARD)
    parser.add_argument("--span", help="length of the time range, such as 30m (the dashboard's)")
    parser.add_argument("--end", type=int, help="its end, in seconds since 1970 (now)")
    parser.add_argument("--theme", choices=["dark", "light"], default="dark")
    parser.add_argument("--width", type=int, default=1368)
    return parser.parse_args()


def main() -> int:
    """Entry point; 1 when a panel has no data at all."""
    arguments = parsed()
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        bundle(Path(folder))
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"), args=FLAGS
        )
        page = browser.new_page(viewport={"width": arguments.width + 32, "height": 900})
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.route(f"{ORIGIN}/**", lambda route: serve(Path(folder), arguments.prometheus, route))
        report = draw(page, arguments)
        browser.close()
    for panel in report:
        missing = f"no data from {', '.join(panel['empty'])}" if panel["empty"] else ""
        print(f"{panel['title']:32} {panel['series']:3} series  {missing}")
    print(*faults, sep="\n", end="\n" if faults else "", file=sys.stderr)
    return int(bool(faults) or not all(panel["series"] for panel in report))


if __name__ == "__main__":
    sys.exit(main())
