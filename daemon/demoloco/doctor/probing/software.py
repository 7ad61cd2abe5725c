"""Which Python and packages are here, and whether torch computes."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from pathlib import Path

from demoloco.doctor.words import Facts

DISTRIBUTION = "demoloco-node"
SIZE = 256
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*([^;]*)")


def probe_packages() -> Facts:
    """Against what the installed distribution says that it needs."""
    facts: dict[str, object] = {"python": platform.python_version(), "packages": []}
    try:
        here = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return facts | {"installed": None, "python_wants": ""}
    needs = [_REQUIREMENT.match(one) for one in here.requires or () if "extra ==" not in one]
    return facts | {
        "installed": here.version,
        "python_wants": here.metadata["Requires-Python"] or "",
        "packages": [
            {"name": need[1], "wants": need[2].strip(), "found": _version(need[1])}
            for need in needs
            if need
        ],
    }


def probe_torch() -> Facts:
    """A product on the device that `--device auto` would take, against what must come out."""
    facts: dict[str, object] = {"error": "", "gpu_in_machine": Path("/dev/nvidia0").exists()}
    try:
        import torch

        from demoloco.worker.device import choose, name_of

        device = choose("auto")
        ones = torch.ones(SIZE, SIZE, device=device)
        right = bool((ones @ ones == SIZE).all().item())
    except Exception as error:  # a wall: whatever a broken build raises is the finding
        return facts | {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return facts | {
        "version": torch.__version__,
        "built_for_gpu": torch.version.cuda is not None or torch.version.hip is not None,
        "cuda_devices": torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
        "device": device.type,
        "device_name": name_of(device),
        "right": right,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
