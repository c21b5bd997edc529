"""The plug-in that ``benchmark/paced/site`` names. Does nothing unless the environment holds a device model.

It comes on top of the CPU reference platform, which gives pools, schedules and messages of a real server. It has no
platform of its own: naming one in ``SGLANG_PLATFORM`` would keep WavePP's plug-in out, which comes with another one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmark.paced.device_model import VARIABLE, DeviceModel

TRACE_VARIABLE = "WAVEPP_PACED_TRACE"
"""Folder for the traces of the stages."""
SCALE_VARIABLE = "WAVEPP_PACED_SCALE_FILE"
"""File with the device's scale, read again whenever it has changed."""
PROFILE_VARIABLE = "WAVEPP_PACED_PROFILE"
"""1: profile the LOOP of every stage into the trace folder."""
SITE = Path(__file__).resolve().parent / "site"
"""Folder that makes the plug-in visible on ``PYTHONPATH``."""


def asked_model(environ: Mapping[str, str], *, on_cpu: bool) -> DeviceModel | None:
    """The device that the environment asks for, None when it asks for none.

    Raises:
        SystemExit: it asks for one that can't be: not on the CPU reference platform, or no device model.
    """
    text = environ.get(VARIABLE)
    if not text:
        return None
    if not on_cpu:
        _stop(f"{VARIABLE} is set, but the paced device needs the CPU reference platform (--device cpu)")
    try:
        return DeviceModel.from_json(text)
    except ValueError as error:
        _stop(f"{VARIABLE}: {error}")
        raise


def register() -> None:
    """Put the paced device in the place of the forward, and record what the stages do."""
    from sglang_wavepp.cpu import hooks

    model = asked_model(os.environ, on_cpu=hooks.is_active())
    if model is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from benchmark.paced import streams, timers, transport
    from benchmark.paced.forwards import Pace
    from benchmark.paced.profiling import LoopProfile
    from benchmark.paced.recorder import Recorder

    folder, scale = os.environ.get(TRACE_VARIABLE), os.environ.get(SCALE_VARIABLE)
    pace = Pace(
        model=model,
        recorder=Recorder(Path(folder)) if folder else None,
        scale_file=Path(scale) if scale else None,
        profile=LoopProfile(Path(folder)) if folder and os.environ.get(PROFILE_VARIABLE) == "1" else None,
    )
    streams.install()
    runner = "sglang.srt.model_executor.model_runner.ModelRunner."
    # Functions become methods of the runner, a bound method would not.
    HookRegistry.register(
        f"{runner}forward", lambda *args, **kwargs: pace.forward(*args, **kwargs), HookType.REPLACE
    )
    HookRegistry.register(
        f"{runner}sample", lambda *args, **kwargs: pace.sample(*args, **kwargs), HookType.REPLACE
    )
    transport.install(pace)
    timers.install(pace.timers)


def _stop(line: str) -> None:
    # SGLang's plug-in loader logs and swallows every Exception, and would then serve without the device.
    print(f"error: {line}", file=sys.stderr, flush=True)
    raise SystemExit(2)
