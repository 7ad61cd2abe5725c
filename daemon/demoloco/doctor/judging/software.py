"""Do Python, the packages and torch fit this node, and does torch compute?"""

from __future__ import annotations

import operator
import re

from demoloco.doctor.words import Facts, Verdict, fail, ok, warn

_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
_SPECIFIER = re.compile(r"(>=|<=|==|!=|<|>)\s*([\w.*+-]+)")
_HOLDS = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}


def satisfies(found: str, wants: str) -> bool:
    """Whether a version lies in a range such as `>=2.6,<3`; only its release numbers count."""
    ours = _release(found)
    return all(_HOLDS[sign](ours, _release(bound)) for sign, bound in _SPECIFIER.findall(wants))


def _release(version: str) -> tuple[int, ...]:
    numbers = _NUMBERS.match(version)
    release = [int(one) for one in numbers[0].split(".")] if numbers else []
    while release and release[-1] == 0:
        release.pop()
    return tuple(release)


def judge_packages(packages: Facts) -> Verdict:
    if not packages["installed"]:
        return warn(
            f"Python {packages['python']}; the node runs from its source, so nothing says which"
            " versions it needs",
            "pip install -e . in the source folder",
        )
    wrong = [
        f"{one['name']} {one['found'] or 'is missing'} (needs {one['wants'] or 'any'})"
        for one in packages["packages"]
        if one["found"] is None or not satisfies(one["found"], one["wants"])
    ]
    if not satisfies(packages["python"], packages["python_wants"]):
        wrong.insert(0, f"Python {packages['python']} (needs {packages['python_wants']})")
    if wrong:
        return fail(", ".join(wrong), "pip install -U demoloco-node, with a Python that fits")
    return ok(
        f"demoloco {packages['installed']}, Python {packages['python']},"
        f" {len(packages['packages'])} packages as needed"
    )


def judge_torch(torch: Facts) -> Verdict:
    """The device that `--device auto` would take must give the right product."""
    if torch["error"]:
        return fail(f"torch does not work: {torch['error']}", "pip install --force-reinstall torch")
    said = f"torch {torch['version']} on {torch['device_name']}"
    if not torch["right"]:
        return fail(
            f"{said} computes wrongly", "--device cpu, and another build or driver of torch"
        )
    if torch["device"] == "cpu" and torch["gpu_in_machine"]:
        why = "is a build for CPUs" if not torch["built_for_gpu"] else "does not see it"
        return warn(
            f"{said}; there is an NVIDIA GPU, and torch {why}",
            "install the build of torch that matches the driver: https://pytorch.org/get-started",
        )
    return ok(said)
