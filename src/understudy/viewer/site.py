"""The page's files, import map and content security policy.

Modules import each other by the names in the import map, not by address. The same files therefore work from a server
and, as data URLs in the import map, inside one HTML file. The policy blocks all other hosts, and its trusted types
keep strings from becoming markup or code.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

VENDOR_MODULES = {
    "preact": "vendor/preact.mjs",
    "preact/hooks": "vendor/hooks.mjs",
    "htm": "vendor/htm.mjs",
    "uplot": "vendor/uPlot.esm.js",
}
"""Import name of each library, with the path of its file."""
MEDIA_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css"}
_START = 'import "view/app.js";'
_POLICY = {
    "default-src": "'none'",
    "img-src": "data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}


@cache
def static_files() -> dict[str, bytes]:
    """Return the page's files: path, such as `pages/runs.js`, to content. The server sends no other file."""
    found, folders = {}, [("", files(__package__) / "static")]
    for prefix, folder in folders:
        for entry in folder.iterdir():
            if entry.is_dir():
                folders.append((f"{prefix}{entry.name}/", entry))
            elif entry.name.endswith(tuple(MEDIA_TYPES)):
                found[prefix + entry.name] = entry.read_bytes()
    return found


def media_type(name: str) -> str:
    """Return the media type of a file of the page."""
    return MEDIA_TYPES[name[name.rindex(".") :]]


def render_page() -> tuple[str, str]:
    """Return the HTML that a server sends, and its content security policy."""
    modules = {name: f"/static/{path}" for name, path in VENDOR_MODULES.items()} | {"view/": "/static/"}
    styles = "".join(f'<link rel="stylesheet" href="/static/{name}">' for name in _stylesheets())
    text, hashes = _scripts(modules)
    sources = {"script-src": f"'self' {hashes}", "style-src": "'self'", "connect-src": "'self'"}
    return _filled(styles, text), _policy({**sources, "frame-ancestors": "'none'"})


def render_offline_page(data: bytes) -> str:
    """Return the page as one HTML file that works without a server.

    `data` is gzip-compressed JSON with the keys `answers` (by path), `rows` (by run) and `left_out`.
    """
    ours = {f"view/{name}": name for name in static_files() if name.endswith(".js") and not name.startswith("vendor/")}
    modules = {name: _as_url(path) for name, path in {**VENDOR_MODULES, **ours}.items()}
    sheets = [static_files()[name].decode() for name in _stylesheets()]
    text, hashes = _scripts(modules)
    policy = _policy({"script-src": f"data: {hashes}", "style-src": " ".join(map(_digest, sheets))})
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    block = f'<script type="application/octet-stream" id="page-data">{base64.b64encode(data).decode()}</script>'
    return _filled(meta + "".join(f"<style>{sheet}</style>" for sheet in sheets), block + text)


def _filled(styles: str, scripts: str) -> str:
    template = (files(__package__) / "static" / "index.html").read_text(encoding="utf-8")
    return template.replace("<!-- styles -->", styles).replace("<!-- scripts -->", scripts)


def _scripts(modules: Mapping[str, str]) -> tuple[str, str]:
    """Return the import map and the start script as markup, and their hashes for the policy's `script-src`."""
    named = json.dumps({"imports": modules}, separators=(",", ":"))
    text = f'<script type="importmap">{named}</script><script type="module">{_START}</script>'
    return text, f"{_digest(named)} {_digest(_START)}"


def _stylesheets() -> list[str]:
    """Return the paths of the style sheets: the libraries' first, those in pages/ last. Later rules override earlier
    ones.
    """
    names = (name for name in static_files() if name.endswith(".css"))
    return sorted(names, key=lambda name: (not name.startswith("vendor/"), name.startswith("pages/"), name))


def _policy(more: Mapping[str, str]) -> str:
    return "; ".join(f"{name} {sources}" for name, sources in {**_POLICY, **more}.items())


def _as_url(path: str) -> str:
    return f"data:{media_type(path)};base64,{base64.b64encode(static_files()[path]).decode()}"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
