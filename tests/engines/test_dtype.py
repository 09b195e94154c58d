"""Tests of the choice of the dtype."""

import pytest
import torch

from understudy.core.errors import ConfigError
from understudy.engines.local.model import choose_device, choose_dtype

CUDA = torch.device("cuda")


@pytest.mark.parametrize("native", [True, False])
def test_dtype_of_a_gpu_follows_its_own_bfloat16(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch also reports bfloat16 for GPUs that only emulate it, such as a T4."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native or including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    assert choose_dtype("auto", CUDA) is (torch.bfloat16 if native else torch.float32)
    assert choose_dtype("float32", CUDA) is torch.float32
    if native:
        assert choose_dtype("bfloat16", CUDA) is torch.bfloat16
    else:
        with pytest.raises(ConfigError, match=r"engine\.dtype = 'bfloat16'.*Tesla T4.*engine\.dtype=float32"):
            choose_dtype("bfloat16", CUDA)
    assert choose_dtype("bfloat16", torch.device("cpu")) is torch.bfloat16


def test_a_missing_gpu_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for version, why in ((None, "without CUDA"), ("13.0", "no GPU was found")):
        monkeypatch.setattr(torch.version, "cuda", version)
        with pytest.raises(ConfigError, match=rf"'cuda'.*{why}.*understudy doctor"):
            choose_device("cuda")
