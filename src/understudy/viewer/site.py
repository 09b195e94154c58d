"""The page: its files, the import map that names its modules, and the policy that a browser holds it to.

Modules import each other by the names of the import map, never by address, so that the same files work from a server
and, as data in the import map, in one file. The policy lets nothing in from elsewhere, and no text become code.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

VENDOR = {
    "preact": "vendor/preact.mjs",
    "preact/hooks": "vendor/hooks.mjs",
    "htm": "vendor/htm.mjs",
    "uplot": "vendor/uPlot.esm.js",
}
"""The names that libraries import each other by."""
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css"}
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
def static() -> dict[str, bytes]:
    """Every file of the page by its path, such as `pages/runs.js`; what is not in here is not served."""
    found, folders = {}, [("", files(__package__) / "static")]
    for prefix, folder in folders:
        for entry in folder.iterdir():
            if entry.is_dir():
                folders.append((f"{prefix}{entry.name}/", entry))
            elif entry.name.endswith(tuple(TYPES)):
                found[prefix + entry.name] = entry.read_bytes()
    return found


def media_type(name: str) -> str:
    """The type that a file of the page is served as."""
    return TYPES[name[name.rindex(".") :]]


def page() -> tuple[str, str]:
    """The page of a server, and its content security policy."""
    modules = {name: f"/static/{path}" for name, path in VENDOR.items()} | {"view/": "/static/"}
    styles = "".join(f'<link rel="stylesheet" href="/static/{name}">' for name in _stylesheets())
    text, hashes = _scripts(modules)
    sources = {"script-src": f"'self' {hashes}", "style-src": "'self'", "connect-src": "'self'"}
    return _filled(styles, text), _policy({**sources, "frame-ancestors": "'none'"})


def whole(data: bytes) -> str:
    """The page as one file that opens without a server. `data` is gzip: what it would be told, by path, as JSON."""
    ours = {f"view/{name}": name for name in static() if name.endswith(".js") and not name.startswith("vendor/")}
    modules = {name: _as_url(path) for name, path in {**VENDOR, **ours}.items()}
    sheets = [static()[name].decode() for name in _stylesheets()]
    text, hashes = _scripts(modules)
    policy = _policy({"script-src": f"data: {hashes}", "style-src": " ".join(map(_digest, sheets))})
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    told = f'<script type="application/octet-stream" id="told">{base64.b64encode(data).decode()}</script>'
    return _filled(meta + "".join(f"<style>{sheet}</style>" for sheet in sheets), told + text)


def _filled(styles: str, scripts: str) -> str:
    template = (files(__package__) / "static" / "index.html").read_text(encoding="utf-8")
    return template.replace("<!-- styles -->", styles).replace("<!-- scripts -->", scripts)


def _scripts(modules: Mapping[str, str]) -> tuple[str, str]:
    """The import map and the first import as markup, and the digests that the policy lets them in by."""
    named = json.dumps({"imports": modules}, separators=(",", ":"))
    text = f'<script type="importmap">{named}</script><script type="module">{_START}</script>'
    return text, f"{_digest(named)} {_digest(_START)}"


def _stylesheets() -> list[str]:
    """The libraries' first, then what all pages share, so that the later ones win."""
    names = (name for name in static() if name.endswith(".css"))
    return sorted(names, key=lambda name: (not name.startswith("vendor/"), name.startswith("pages/"), name))


def _policy(more: Mapping[str, str]) -> str:
    return "; ".join(f"{name} {sources}" for name, sources in {**_POLICY, **more}.items())


def _as_url(path: str) -> str:
    return f"data:{media_type(path)};base64,{base64.b64encode(static()[path]).decode()}"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
