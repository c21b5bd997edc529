"""The sequence of wave budgets that the planner chooses from when it knows no times."""

from __future__ import annotations


def halvings(*, largest: int, smallest: int, step: int) -> tuple[int, ...]:
    """`largest`, a half, a quarter, ... down to `smallest`, each aligned down to `step`, largest first.

    Args:
        largest: tokens of the largest budget, `M`.
        smallest: no budget is below it, but for the alignment.
        step: distance of the positions where a span may end.

    Raises:
        ValueError: unless `step <= smallest <= largest`.
    """
    if not 0 < step <= smallest <= largest:
        raise ValueError(
            f"wave budgets must satisfy grid step <= smallest <= largest, got {step}, {smallest}, {largest}"
        )
    budgets = [largest // step * step]
    while budgets[-1] // 2 >= smallest:
        budgets.append(budgets[-1] // 2 // step * step)
        if budgets[-1] < smallest:  # the alignment took it below
            budgets.pop()
            break
    return tuple(budgets)
