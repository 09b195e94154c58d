"""Secrets are recognized by name and shape, refused in settings and masked in texts."""

import base64
import html
import json
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest

from understudy.clients.chat import EndpointConfig
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.records import Record
from understudy.core.secrets import is_secret_name, mask_secrets, mask_values, validate_no_secrets
from understudy.core.settings import dump_toml, parse_toml
from understudy.core.user_code import user_code
from understudy.runs.config import TrainConfig
from understudy.runs.trackers import TrackingConfig

KEY = "sk-" + "a1B2c3D4e5" * 3


@pytest.mark.parametrize(
    "name",
    ["api_key", "apikey", "GITHUB_TOKEN", "x-auth-token", "tavilyApiKey", "PGPASSWORD", "Authorization", "key",
     "--token", "AWS_SECRET_ACCESS_KEY", "Cookie", "client_secret", "passphrase", "DB_PASS", "X-API-Key", "HF_TOKEN",
     "db.password"],
)  # fmt: skip
def test_name_of_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["api_key_var", "max_tokens", "MAX_TOKENS", "pad_token", "primary_key", "tokenizer", "author", "keyboard", "monkey",
     "token_mean", "cache_key", "", "²", "password_file", "TOKENIZERS_PARALLELISM", "base_url", "keys"],
)  # fmt: skip
def test_name_of_other_setting(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"extra_body": {"api_key": "hunter2"}}, "extra_body.api_key"),
        ({"extra_body": {"deep": [{"x": {"Authorization": "abc"}}]}}, "extra_body.deep.0.x.Authorization"),
        ({"user": {"note": f"use {KEY}"}}, "user.note"),
        ({"url": "https://me:word@host/api"}, "url"),
        ({"url": "https://token@host/api"}, "url"),
        ({"url": "https://host/api?api_key=abcdefgh"}, "url"),
        ({"url": "https://host/api?a=1&key=abcdefgh"}, "url"),
        ({"db": "postgresql://me:word@host/db"}, "db"),
        ({"command": ["server", "--api-key", "abcdefgh"]}, "command.2"),
        ({"command": ["server", "--token=abcdefgh"]}, "command.1"),
        ({"command": "server --token=abcdefgh"}, "command"),
        ({"headers": {"X": "Bearer abcdefgh12345"}}, "headers.X"),
        ({"args": ["-H", "X-Api-Key: abcdefgh12345"]}, "args.1"),
        ({"env": {"GITHUB_TOKEN": "abcdef"}}, "env.GITHUB_TOKEN"),
        ({"pem": "-----BEGIN RSA PRIVATE KEY-----\nMII"}, "pem"),
    ],
)
def test_plain_secret_is_refused_without_its_value(values: dict[str, object], place: str) -> None:
    with pytest.raises(ConfigError) as error:
        validate_no_secrets(values, "x.toml")
    said = str(error.value)
    assert said.startswith(f"x.toml: {place} holds ")
    assert not any(secret in said for secret in (KEY, "hunter2", "abcdef", ":word", "token@", "MII"))


@pytest.mark.parametrize(
    "values",
    [
        {"env": {"GITHUB_TOKEN": "${GITHUB_TOKEN}", "MAX_TOKENS": "100000"}},
        {"headers": {"Authorization": "Bearer ${KEY}"}},
        {"url": "https://host/mcp?api_key=${KEY}"},
        {"command": ["server", "--api-key", "${KEY}", "--token=${KEY}"]},
        {"api_key_var": "OPENAI_API_KEY", "model": "sk-learn-small-model-name-of-mine"},
        {"extra_body": {"stop_token": "<|im_end|>", "max_tokens": 12, "token": 5, "key": None}},
        {"policy": "The basic authentication of a bearer is described elsewhere. sorted(x, key=lambda a: a)"},
        {"source": "git+ssh://git@host/repository"},
    ],
)
def test_references_and_other_settings_are_allowed(values: dict[str, object]) -> None:
    validate_no_secrets(values, "x.toml")


def test_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", "open/sesame!")
    monkeypatch.setenv("SHORT_KEY", "abc")
    assert mask_secrets("401 for open/sesame!") == "401 for [MY_SERVICE_TOKEN]"
    assert mask_secrets("401 for open%2Fsesame%21 abc") == "401 for [MY_SERVICE_TOKEN] abc"
    assert mask_secrets("401 for blue-house", "blue-house") == "401 for [secret]"
    assert mask_secrets("GET https://me:word@host/api?x=1&api_key=abcdefgh&y=2") == (
        "GET https://[login]@host/api?x=1&api_key=[secret]&y=2"
    )
    monkeypatch.setenv("PWD", "/home/me/project")
    monkeypatch.setenv("OLDPWD", "/home/me")
    assert mask_secrets("/home/me/project/ev1 exists") == "/home/me/project/ev1 exists"
    assert mask_secrets("UID=me;PWD=hunter2") == "UID=me;PWD=[secret]"
    assert mask_secrets("Authorization: Bearer abcdefgh12345") == "Authorization: Bearer [secret]"
    assert mask_secrets(f"Incorrect key {KEY}.") == "Incorrect key [secret]."
    plain = "no such key: order_20240101"
    plain += " max_tokens=100000 token_mean learning_rate=0.00001 key=lambda: the bearer authenticates https://host/a@b"
    assert mask_secrets(plain) == plain


VALUE = 'Top/se"cret+Ü?7'
RAW = VALUE.encode()


@pytest.mark.parametrize(
    "form",
    [
        VALUE,
        VALUE.upper(),
        VALUE.lower(),
        base64.b64encode(RAW).decode(),
        base64.b64encode(RAW).decode().rstrip("="),
        base64.urlsafe_b64encode(RAW).decode(),
        base64.urlsafe_b64encode(RAW).decode().rstrip("="),
        RAW.hex(),
        RAW.hex().upper(),
        urllib.parse.quote(VALUE),
        urllib.parse.quote(VALUE, safe=""),
        urllib.parse.quote_plus(VALUE),
        urllib.parse.quote(VALUE, safe="")
        .replace("%2F", "%2f")
        .replace("%2B", "%2b")
        .replace("%C3%9C%3F", "%c3%9c%3f"),
        json.dumps(VALUE)[1:-1],
        json.dumps(VALUE, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(VALUE))[3:-3],
        html.escape(VALUE),
    ],
)
def test_secret_is_masked_in_each_encoding(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", VALUE)
    assert mask_secrets(f"<{form}>") == "<[MY_SERVICE_TOKEN]>"
    assert mask_values(f"<{form}>", {VALUE: "[x]"}) == "<[x]>"


@pytest.mark.parametrize("before", ["", "a", "me", "you:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_secret_within_base64_is_masked(before: str, encode: Callable[[bytes], bytes]) -> None:
    masked = mask_values(encode(before.encode() + RAW + b"!").decode(), {VALUE: "[x]"})
    assert "[x]" in masked
    assert len(masked) <= 4 + len("[x]") + 4 + len(before)


def test_exceptions_of_user_code_show_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", VALUE)
    with pytest.raises(RolloutError) as raised, user_code("tool", "a tool"):
        raise ValueError(f"{VALUE} {RAW.hex()}")
    assert raised.value.report is not None
    for text in (str(raised.value), raised.value.report.traceback):
        assert "[MY_SERVICE_TOKEN] [MY_SERVICE_TOKEN]" in text
        assert VALUE not in text


@pytest.mark.parametrize(
    "unit", ["a", "//", "a=", "sk-", "Bearer ", "x:y@", "-----BEGIN ", "eyJaaaaaaaaa.", "token=aaaaaaa1&"]
)
def test_masking_is_linear(unit: str) -> None:
    def seconds(count: int) -> float:
        text = unit * (count // len(unit))
        began = time.process_time()
        mask_secrets(text)
        return time.process_time() - began

    seconds(1000)
    assert seconds(200_000) < 10.0  # quadratic time would be minutes


class Settings(Record):
    """A config with free keys."""

    extra: dict[str, Any] = {}
    count: int = 0


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("extra = {api_key = 'hunter2'}", []),
        ("", ["extra.api_key=hunter2"]),
        ("", ["extra.note=http://me:hunter2@host"]),
        ("", ["api_key=hunter2"]),
        ("", ["count=http://me:hunter2@host"]),
        ("", ["count.password=hunter2"]),
        ("count = 'Bearer hunter2hunter2'", []),
    ],
)
def test_no_config_error_quotes_a_secret(text: str, overrides: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        parse_toml(Settings, text, overrides)
    assert "hunter2" not in str(error.value)


def test_config_with_secret_is_not_written() -> None:
    with pytest.raises(ConfigError, match=r"extra\.deep\.token"):
        dump_toml(Settings(extra={"deep": {"token": "hunter2"}}))
    with pytest.raises(ConfigError, match=r"extra_body: api_key"):
        EndpointConfig(extra_body={"api_key": "hunter2"})
    with pytest.raises(ConfigError, match=r"tracking\.name"):
        TrainConfig(tracking=TrackingConfig(name=KEY))
