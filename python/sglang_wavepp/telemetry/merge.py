"""``python -m sglang_wavepp.telemetry.merge DIR``: trace.json for trace viewers, timeline.html and timeline.svg for
people."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from sglang_wavepp.telemetry.chrome import chrome_trace
from sglang_wavepp.telemetry.figure import figure
from sglang_wavepp.telemetry.picture import picture
from sglang_wavepp.telemetry.reading import TraceError, read_folder


class Merged(NamedTuple):
    """Files that were written.

    Attributes:
        trace: for trace viewers.
        page: the timeline to look into.
        figure: the timeline as one picture.
    """

    trace: Path
    page: Path
    figure: Path


def merge(
    directory: Path,
    title: str = "WavePP timeline",
    *,
    window_ns: tuple[int, int] | None = None,
    output: Path | None = None,
) -> Merged:
    """Write the files into the trace folder, or into ``output``.

    Args:
        window_ns: only events that lie within these two times (of the trace's clock) are taken.

    Raises:
        TraceError: the folder holds no trace of this format.
    """
    ranks = read_folder(directory)
    if window_ns is not None:
        ranks = tuple(rank.between(*window_ns) for rank in ranks)
    folder = directory if output is None else output
    merged = Merged(folder / "trace.json", folder / "timeline.html", folder / "timeline.svg")
    merged.trace.write_bytes(msgspec.json.encode(chrome_trace(ranks)))
    merged.page.write_text(picture(ranks, title), encoding="utf-8")
    merged.figure.write_text(figure(ranks, title), encoding="utf-8")
    return merged


def main(arguments: list[str] | None = None) -> int:
    """Command line; exit status 1 when there is no trace."""
    parser = argparse.ArgumentParser(
        prog="python -m sglang_wavepp.telemetry.merge",
        description="Merge the ranks of a WavePP trace into trace.json (Perfetto, chrome://tracing), timeline.html and "
        "timeline.svg.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="the folder given to --wavepp-trace")
    parser.add_argument("--title", default="WavePP timeline", help="heading of the picture")
    parsed = parser.parse_args(arguments)
    try:
        merged = merge(parsed.directory, parsed.title)
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{merged.trace}  (open in https://ui.perfetto.dev or chrome://tracing)")
    print(f"{merged.page}  (open in a browser)")
    print(f"{merged.figure}  (a picture for a page or a slide)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
