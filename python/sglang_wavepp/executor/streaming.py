"""Hides requests that are in the middle of their prompt from the output stream.

SGLang hides one such request of a batch, because its scheduler never has more. A wave has many, and an empty chunk of
a stream would be taken for its first token.
"""

from __future__ import annotations

from typing import Any

from sglang_wavepp.executor.keys import has_key, key_of


def make_wave_streamer(base: type[Any]) -> type[Any]:
    """A subclass of SGLang's `SchedulerOutputStreamer` that knows which requests of a wave are mid-prompt."""

    class WaveOutputStreamer(base):
        """Streams only requests that have something to say."""

        mid_prompt: frozenset[str] = frozenset()

        def stream_output(self, reqs: list[Any], return_logprob: bool, skip_req: Any = None) -> Any:
            """Stream the requests of a batch, less those in `mid_prompt` (request keys)."""
            spoken = [req for req in reqs if not has_key(req) or key_of(req) not in self.mid_prompt]
            if not spoken:
                return None
            return super().stream_output(spoken, return_logprob, skip_req)

    return WaveOutputStreamer
