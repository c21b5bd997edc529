"""Hooks on ``sglang.srt.server_args``: flags in, settings out."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

from sgl_patches import applied, launch
from sgl_patches.patch import Kind, NeededBy, Patch
from sglang_wavepp.settings.flags import KEYWORDS, add_arguments
from sglang_wavepp.settings.of import settings_of

ADD_CLI_ARGS = "sglang.srt.server_args.ServerArgs.add_cli_args"
FROM_CLI_ARGS = "sglang.srt.server_args.ServerArgs.from_cli_args"
RESOLVED_DICT = "sglang.srt.server_args.ServerArgs.resolved_dict"
CHECK_SERVER_ARGS = "sglang.srt.server_args.ServerArgs.check_server_args"

PATCHES = (
    Patch(
        target=ADD_CLI_ARGS,
        kind=Kind.AFTER,
        why="adds the WavePP group to the parser",
        breaks_without="--wavepp is an unknown argument",
        fingerprint="af9b7887090bb720",
        needed_by=NeededBy.ALWAYS,
    ),
    Patch(
        target=FROM_CLI_ARGS,
        kind=Kind.AROUND,
        why="reads the WavePP flags, refuses what cannot be combined and records the settings on the arguments",
        breaks_without="--wavepp is parsed and then ignored",
        fingerprint="8e4a5631cf3ea5ec",
        needed_by=NeededBy.ALWAYS,
    ),
    Patch(
        target=RESOLVED_DICT,
        kind=Kind.AFTER,
        why="shows the settings in /server_info and in the start-up log",
        breaks_without="/server_info does not say how WavePP is set",
        fingerprint="eb16ddf2c0bf01bc",
        needed_by=NeededBy.WAVEPP,
    ),
    Patch(
        target=CHECK_SERVER_ARGS,
        kind=Kind.BEFORE,
        why="checks the refusals again on the resolved arguments, and takes settings from the environment where "
        "arguments were built before plugins were loaded",
        breaks_without="an option that SGLang switches on by itself is served although WavePP cannot work with it",
        fingerprint="2cdfa63e9fa39693",
        needed_by=NeededBy.WAVEPP,
    ),
)


def install_flags() -> None:
    """Hook the parsing of arguments. All that a process without ``--wavepp`` ever sees."""
    applied.add(ADD_CLI_ARGS, _add_cli_args, "after")
    applied.add(FROM_CLI_ARGS, _from_cli_args, "around")


def install_launcher() -> None:
    """Hook what the launcher needs once WavePP was asked for."""
    applied.add(RESOLVED_DICT, _resolved_dict, "after")
    applied.add(CHECK_SERVER_ARGS, _check_server_args, "before")


def _add_cli_args(result: None, parser: ArgumentParser) -> None:
    add_arguments(parser)


def _from_cli_args(original: Callable[..., Any], cls: type, args: Namespace) -> Any:
    server_args = original(cls, args)
    with launch.errors_as_one_line():
        launch.decide(server_args, {name: getattr(args, name, None) for name in KEYWORDS})
    launch.mark_command_line(server_args)
    return server_args


def _resolved_dict(result: dict[str, Any], server_args: Any) -> dict[str, Any]:
    settings = settings_of(server_args)
    return result if settings is None else {**result, **settings.as_flags()}


def _check_server_args(server_args: Any) -> None:
    launch.check_resolved(server_args)
