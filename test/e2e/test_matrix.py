"""The wide comparison of ``benchmark.matrix``; cells that were right with the present sources are not run again."""

from __future__ import annotations

import pytest
from e2e.pool import ServerPool

from benchmark.matrix import Cell, cells, run_cell


@pytest.mark.full
@pytest.mark.parametrize("cell", cells(), ids=lambda cell: cell.name)
def test_cell(cell: Cell, pool: ServerPool) -> None:
    pool.stop_all()
    result = run_cell(cell)
    assert not result.error, result.error
    wrong = [f"{one.name}: {text}" for one in result.passes for text in one.wrong]
    assert not wrong, "\n".join(wrong[:20])
