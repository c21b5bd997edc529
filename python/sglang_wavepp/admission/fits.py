"""Whether a request can ever run: against the empty pools of the smallest rank.

Judged once, at arrival. What passes here is admitted sooner or later, because a rank on which nothing else
holds anything can always give it room at endpoint 0; what does not is refused at once with the numbers.
"""

from __future__ import annotations

from sglang_wavepp.admission.pools import PoolLimits, positions


def clip_output(*, prompt: int, max_new_tokens: int, limits: PoolLimits) -> int:
    """Output tokens that the request may make, at most `max_new_tokens`.

    Args:
        prompt: tokens of the prompt.
        max_new_tokens: output tokens asked for.
        limits: `smallest` of all ranks, so that every rank reserves the same.

    Returns:
        At least 1 for a request that asks for output, also when the prompt alone is too long: `refusal` tells
        then.
    """
    room = min(limits.usable_tokens - prompt + 1, limits.context - prompt)
    return min(max_new_tokens, max(room, 1))


def refusal(*, prompt: int, max_new_tokens: int, limits: PoolLimits) -> str | None:
    """Why the request can never be admitted, for its client; None when it can.

    Args:
        prompt: tokens of the prompt.
        max_new_tokens: output tokens, clipped.
        limits: `smallest` of all ranks.
    """
    output = max(max_new_tokens, 1)
    if prompt < 1:
        return "The prompt is empty: at least 1 token is needed."
    if prompt + output > limits.context:
        return (
            f"The prompt has {prompt} tokens and {output} output tokens are asked for, {prompt + output}"
            f" together; the context of this server is {limits.context} tokens."
        )
    need = limits.paged(positions(prompt=prompt, max_new_tokens=max_new_tokens))
    if need > limits.usable_tokens:
        return (
            f"The prompt has {prompt} tokens and {output} output tokens are asked for. That needs {need}"
            f" cache tokens in pages of {limits.page_size}; the smallest pipeline rank has {limits.usable_tokens}."
        )
    if limits.recurrent_slots is not None and limits.slots_per_request > limits.recurrent_slots:
        return (
            f"A request needs {limits.slots_per_request} recurrent state slots; the smallest pipeline rank"
            f" has {limits.recurrent_slots}. Start the server with a larger --max-mamba-cache-size."
        )
    if limits.rows < 1:
        return "This server has no request row; start it with a larger --max-running-requests."
    return None
