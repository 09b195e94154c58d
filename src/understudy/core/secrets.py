"""Secrets: which settings hold one, how they are refused in plain text, and how texts are masked.

A secret belongs in an environment variable. A setting names the variable (`api_key_var`) or refers to it (`${NAME}`).
"""

import functools
import html
import json
import os
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated
from urllib.parse import quote, quote_plus

from pydantic import AfterValidator

from understudy.core.errors import ConfigError


def _validate_key_variable(value: str) -> str:
    if value and not re.fullmatch(r"[A-Za-z_]\w*", value, re.ASCII):
        raise ConfigError("api_key_var must be the name of an environment variable (letters, digits, _), not a key")
    return value


KeyVariable = Annotated[str, AfterValidator(_validate_key_variable)]
"""The name of the environment variable with a key. An error does not show it, because it may be the key."""
MIN_SECRET_LENGTH = 6
"""Shortest secret in characters. A shorter value would also be masked where it occurs by chance."""
MASK = "[secret]"
_CLEAR = re.compile(r"secret|passw|passphrase|credential|api[-_.]?key|authori[sz]ation", re.IGNORECASE)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LAST_WORDS = frozenset({"key", "token", "auth", "pwd", "pass", "cookie", "sig", "signature", "bearer", "jwt", "pat"})
_FOLDER_VARIABLES = frozenset({"PWD", "OLDPWD"})
"""Variables in which a shell keeps its working folders. Elsewhere, `PWD` is a password, as in `UID=me;PWD=…`."""
_PLAIN_BEFORE = {
    "key": frozenset({"public", "primary", "foreign", "sort", "partition", "cache", "hot", "group", "json", "text"}),
    "token": frozenset({"pad", "eos", "bos", "unk", "sep", "cls", "mask", "stop", "per", "image", "max", "min"}),
}
"""Words before a last word that make a plain name of it, such as `primary_key` and `pad_token`."""
_ABOUT = frozenset({"var", "env", "variable", "file", "path", "name", "type", "length", "id", "limit", "url", "header"})
"""Last words of names that say where a secret is, or how it looks, such as `api_key_var`."""
_SHAPES = re.compile(
    r"""
    \b(?:sk|pk|rk)[-_](?=[\w-]{0,99}?\d)[\w-]{16,400}      # OpenAI, Anthropic, Stripe
    | \b(?:hf|gsk|r8|npm|gh[pousr]|github_pat|glpat|xox[abeprs]|nvapi|tvly|tml|pypi|wandb_v\d)
      [-_](?=[\w-]{0,99}?\d)[\w-]{16,400}
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b               # AWS
    | \bAIza[\w-]{30,400}                            # Google
    | \beyJ[\w-]{8,2000}\.eyJ[\w-]{8,4000}\.[\w-]{8,2000}     # JSON Web Token
    | -----BEGIN\ [A-Z ]{0,20}PRIVATE\ KEY-----[^-]*
    """,
    re.VERBOSE | re.ASCII,
)
_SCHEME = re.compile(r"\b(Bearer|Basic)(\s{1,4})(?=[^\s,;\"']*\d)([\w.~+/=-]{12,})", re.IGNORECASE | re.ASCII)
"""The value of an Authorization header. It has a digit, as words after `bearer` in a sentence have not."""
_LOGIN = re.compile(r"(?<=//)[^/?#@\s]{1,500}(?=@)")
_ASSIGNED = re.compile(r"(?<![\w.-])(-{0,2}[A-Za-z][\w.-]{0,60})(=|: ?(?!//)|%3D)(?=([^\s&#\"',;\\]{6,400}))", re.ASCII)
"""`name=value` in a URL's query or a command, or `name: value` of a header."""
_REFERENCE = re.compile(r"\$\{\w+\}")
_URL_SAFE = str.maketrans("+/", "-_")


def is_secret_name(name: str) -> bool:
    """Return whether the value of a setting, variable, header, option or parameter of this name is a secret.

    `api_key`, `GITHUB_TOKEN`, `x-auth-token` and `tavilyApiKey` are; `api_key_var`, `max_tokens`, `pad_token` and
    `primary_key` are not.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT:
        return False
    plain = len(words) > 1 and words[-2] in _PLAIN_BEFORE.get(words[-1], ())
    return bool(_CLEAR.search(name)) or (words[-1] in _LAST_WORDS and not plain)


def validate_no_secrets(values: object, source: str) -> None:
    """Raise ConfigError if a setting holds a secret in plain text. The error names its place, never its value.

    `values` are nested mappings and sequences. A setting is refused if its name says that it is a secret
    (`is_secret_name`) or its text contains one: a login or key in a URL, an Authorization header, the key of a known
    service, an option such as `--api-key`. References to a variable, `${NAME}`, are allowed.
    """
    for place, why in _find(values, ""):
        raise ConfigError(
            f"{source}: {place or 'the value'} holds {why} in plain text, which would be stored with the run; set an "
            "environment variable and name it here: api_key_var = 'NAME' for an endpoint, '${NAME}' for an MCP server"
        )


def mask_secrets(text: str, *known: str) -> str:
    """Return the text with `[NAME]` or `[secret]` in place of each secret.

    Masked are the values of environment variables whose name says so and `known` values, in any form of
    `mask_values`, logins and keys in URLs, Authorization headers, and the keys of known services.
    """
    values = dict.fromkeys(known, MASK)
    values |= {
        value: f"[{name}]"
        for name, value in os.environ.items()
        if is_secret_name(name) and name not in _FOLDER_VARIABLES
    }
    text = mask_values(text, values)
    text = _LOGIN.sub("[login]", text)
    text = _SCHEME.sub(rf"\1\2{MASK}", text)
    parts, end = [], 0
    for found in _ASSIGNED.finditer(text):
        if found.start(3) >= end and _assigns_secret(found):
            parts += [text[end : found.start(3)], MASK]
            end = found.end(3)
    return _SHAPES.sub(MASK, "".join([*parts, text[end:]]))


def mask_values(text: str, values: Mapping[str, str]) -> str:
    """Return the text with each secret of `values` replaced by the text that it is mapped to.

    A secret is also found in upper and lower case, URL-encoded, escaped as in JSON, Python and HTML, as hexadecimal
    digits, and in Base64, alone or within a longer text. Values shorter than `MIN_SECRET_LENGTH` are not masked.
    """
    forms = [
        (form, shown)
        for value, shown in values.items()
        if len(value) >= MIN_SECRET_LENGTH
        for form in _encoded_forms(value)
    ]
    for form, shown in sorted(forms, key=lambda each: len(each[0]), reverse=True):
        text = text.replace(form, shown)
    return text


@functools.lru_cache(maxsize=256)
def _encoded_forms(value: str) -> frozenset[str]:
    raw = value.encode(errors="surrogatepass")
    quoted = {encode(value, safe=safe, errors="replace") for encode in (quote, quote_plus) for safe in ("", "/")}
    escaped = {json.dumps(value, ensure_ascii=ascii)[1:-1] for ascii in (True, False)} | {repr(value)[1:-1]}
    escaped |= {text.replace("/", r"\/") for text in escaped} | {json.dumps(text)[1:-1] for text in escaped}
    forms = {value, value.upper(), value.lower(), html.escape(value), raw.hex(), raw.hex().upper()} | quoted | escaped
    forms |= {re.sub("%..", lambda code: code[0].lower(), text) for text in quoted} | {quote(text) for text in quoted}
    for offset in range(3):  # the digits of Base64 depend on where the value begins in groups of three bytes
        digits = b64encode(bytes(offset) + raw).decode()
        complete = digits[-(-offset * 8 // 6) : (offset + len(raw)) * 8 // 6]
        forms |= {complete, complete.translate(_URL_SAFE)}
        if offset == 0:
            forms |= {digits, digits.translate(_URL_SAFE), digits.rstrip("="), digits.rstrip("=").translate(_URL_SAFE)}
    return frozenset(forms)


def _assigns_secret(found: re.Match[str]) -> bool:
    """Return whether a match of `_ASSIGNED` is a secret, and not a word of a sentence or of code after a name."""
    name, sign, value = found.groups()
    if not is_secret_name(name) or value.startswith(("[", "$", "{")):
        return False
    has_digit = any(character.isdigit() for character in value)
    if sign.startswith(":"):
        is_word = name.lower() in _LAST_WORDS and name.lower() != "cookie"  # as in "no such key: order_20240101"
        return has_digit and len(value) >= 12 and not is_word
    in_query = found.string[max(0, found.start() - 1) : found.start()] in ("?", "&")
    return has_digit or in_query or name.startswith("-") or bool(_CLEAR.search(name))


def _find(values: object, path: str) -> Iterator[tuple[str, str]]:
    """Yield the place of each secret in plain text, and what it is."""
    if isinstance(values, str):
        if why := _secret_in(values):
            yield path, why
    elif isinstance(values, Mapping):
        for name, value in values.items():
            inner = f"{path}.{name}" if path else str(name)
            if isinstance(value, str) and value and not _REFERENCE.search(value) and is_secret_name(str(name)):
                yield inner, "a secret"
            else:
                yield from _find(value, inner)
    elif isinstance(values, Sequence) and not isinstance(values, bytes):
        option = ""
        for place, value in enumerate(values):
            if option and isinstance(value, str) and not _REFERENCE.search(value):
                yield f"{path}.{place}", f"the value of {option}"
            yield from _find(value, f"{path}.{place}")
            option = value if isinstance(value, str) and value.startswith("-") and is_secret_name(value) else ""


def _secret_in(text: str) -> str:
    """Return what kind of secret a text contains, or ""."""
    text = _REFERENCE.sub("", text)
    if (login := _LOGIN.search(text)) and (":" in login[0] or re.search(r"https?:$", text[: login.start() - 2])):
        return "a login in a URL"
    if _SCHEME.search(text):
        return "an Authorization header"
    for found in _ASSIGNED.finditer(text):
        if _assigns_secret(found):
            return f"the value of {found[1]}"
    return "a key of a known service" if _SHAPES.search(text) else ""
