"""Admission on one rank by two walks of its tree: one for the hint, one that validates, pins and promises.

The plain way, with nothing beside SGLang's own tree; what a lease adds is measured against it.
"""

from __future__ import annotations

from sglang_wavepp.admission.hint import Hint
from sglang_wavepp.admission.messages import InstallRecord
from sglang_wavepp.cache.holdings import Holdings, cap


class TwoWalkAdmission(Holdings):
    """Holdings whose hints walk the tree."""

    def hint(self, record: InstallRecord) -> Hint:
        """Longest endpoint of the request here and now; pins nothing."""
        found = self._tree.match(record, cap(record, record.cache_limit))
        self._reach[record.rid] = found.reach
        return Hint(endpoint=found.endpoint, reach=found.reach)
