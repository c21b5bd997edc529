"""Whether arguments that are good by themselves fit each other; said before any server is started."""

from __future__ import annotations

from collections.abc import Iterable

from benchmark.paced.arms import Arm
from benchmark.paced.cells import PAGE
from benchmark.paced.load import Load
from benchmark.paced.paced_server import CONTEXT


def see_prompts_fit(loads: Iterable[Load], *, shorten: int, pool: int) -> None:
    """See that a stage's cache and its context take the largest prompt and what comes out of it.

    Raises:
        ValueError: it doesn't.
    """
    largest = max(job.prompt for load in loads for job in load.workload(shorten=shorten).jobs)
    # The output begins in the prompt's last page or in one of its own, and SGLang wants a few tokens more.
    least = (largest // PAGE + 2) * PAGE
    if pool < least:
        raise ValueError(
            f"a cache of {pool:,} tokens is too small for prompts of {largest:,}: they need {least:,}"
        )
    if least > CONTEXT // shorten:
        raise ValueError(
            f"prompts of {largest:,} tokens don't fit into the servers' context of {CONTEXT // shorten:,}"
        )


def see_chunks_are_pages(arms: Iterable[Arm], *, wave_tokens: int) -> None:
    """See that the chunks of all arms are whole pages.

    Raises:
        ValueError: an arm divides M into smaller ones.
    """
    for arm in arms:
        if wave_tokens % (arm.chunk_divisor * PAGE):
            raise ValueError(
                f"{arm.name} divides M of {wave_tokens:,} tokens into chunks that are no whole pages of {PAGE}:"
                " leave it out or shorten less"
            )
