"""Which row of the table `layouts` stands for each layout; remembered only once it is committed."""

from __future__ import annotations

from collections.abc import Callable

from relayrl.data.schema import Layout
from relayrl.sinks.database_rows import layout_text_and_digest


class LayoutKeys:
    """Keys by layout, for a connection's life."""

    def __init__(self) -> None:
        self._committed: dict[int, tuple[Layout, int]] = {}  # the layout keeps its id alive
        self._pending: dict[int, tuple[Layout, int]] = {}

    def begin(self) -> None:
        """A transaction begins; what an earlier one did not commit is not there."""
        self._pending.clear()

    def key(self, layout: Layout, find_or_make: Callable[[str, str], int]) -> int:
        """The key of a layout; `find_or_make` gets its JSON and digest where it is not known yet."""
        known = self._committed.get(id(layout)) or self._pending.get(id(layout))
        if known is None:
            known = self._pending[id(layout)] = (layout, find_or_make(*layout_text_and_digest(layout)))
        return known[1]

    def commit(self) -> None:
        """The transaction is durable."""
        self._committed.update(self._pending)

    def forget(self) -> None:
        """The connection is gone."""
        self._committed.clear()
        self._pending.clear()
