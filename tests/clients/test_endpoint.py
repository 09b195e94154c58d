"""Tests of what HTTP clients share: addresses and proxies."""

import pytest

from understudy.clients.endpoint import validate_proxies, validate_url
from understudy.core.errors import ConfigError


def test_port_above_65535_is_refused() -> None:
    assert validate_url("http://127.0.0.1:65535/v1/", "x") == "http://127.0.0.1:65535/v1"
    with pytest.raises(ConfigError, match=r"^x: .*65535"):
        validate_url("http://127.0.0.1:65536/v1", "x")


@pytest.mark.parametrize("proxy", ["socks://127.0.0.1:1080/", "no:port"])
def test_unusable_proxy_is_a_config_error(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    validate_proxies()
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(ConfigError, match="ALL_PROXY"):
        validate_proxies()
