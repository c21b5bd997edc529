"""``python -m sglang_wavepp.telemetry.merge DIR``: trace.json for trace viewers and timeline.html for people."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from sglang_wavepp.telemetry.chrome import chrome_trace
from sglang_wavepp.telemetry.picture import picture
from sglang_wavepp.telemetry.reading import TraceError, read_folder


def merge(
    directory: Path,
    title: str = "WavePP timeline",
    *,
    window_ns: tuple[int, int] | None = None,
    output: Path | None = None,
) -> tuple[Path, Path]:
    """Write both files into the trace folder, or into ``output``, and return their paths (JSON, HTML).

    Args:
        window_ns: only events that lie within these two times (of the trace's clock) are taken.

    Raises:
        TraceError: the folder holds no trace of this format.
    """
    ranks = read_folder(directory)
    if window_ns is not None:
        ranks = tuple(rank.between(*window_ns) for rank in ranks)
    folder = directory if output is None else output
    trace_path, html_path = folder / "trace.json", folder / "timeline.html"
    trace_path.write_bytes(msgspec.json.encode(chrome_trace(ranks)))
    html_path.write_text(picture(ranks, title), encoding="utf-8")
    return trace_path, html_path


def main(arguments: list[str] | None = None) -> int:
    """Command line; exit status 1 when there is no trace."""
    parser = argparse.ArgumentParser(
        prog="python -m sglang_wavepp.telemetry.merge",
        description="Merge the ranks of a WavePP trace into trace.json (Perfetto, chrome://tracing) and timeline.html.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="the folder given to --wavepp-trace")
    parser.add_argument("--title", default="WavePP timeline", help="heading of the picture")
    parsed = parser.parse_args(arguments)
    try:
        trace_path, html_path = merge(parsed.directory, parsed.title)
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{trace_path}  (open in https://ui.perfetto.dev or chrome://tracing)")
    print(f"{html_path}  (open in a browser)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
