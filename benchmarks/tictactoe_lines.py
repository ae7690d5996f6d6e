"""Tictactoe against an opponent that moves uniformly at random: how games end, exactly.

`lines_of_play` walks all games that the opponent of a given way to play can choose, each with its probability. `best_play` is
what the best way to play gets: the ceiling of the numbers that `self_play.py` measures.

    python benchmarks/tictactoe_lines.py

prints the ceilings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

Board = tuple[int, ...]
"""Nine cells in rows: 0 is free, 1 the first player's, 2 the second player's."""
EMPTY: Board = (0,) * 9
_ROWS = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


class Ends(NamedTuple):
    """How games end for a player: probabilities, or numbers of games."""

    won: Fraction
    drawn: Fraction
    lost: Fraction


NEVER = Ends(Fraction(0), Fraction(0), Fraction(0))


def never_losing(ends: Ends) -> tuple[Fraction, Fraction]:
    """Worth of not losing first, then of winning."""
    return -ends.lost, ends.won


def scored(ends: Ends) -> Fraction:
    """Worth where a draw is half a win."""
    return ends.won + ends.drawn / 2


def won_at_all_costs(ends: Ends) -> Fraction:
    """Worth of winning alone."""
    return ends.won


def free_cells(board: Board) -> list[int]:
    """Cells that can be taken."""
    return [cell for cell in range(9) if not board[cell]]


def to_move(board: Board) -> int:
    """The player whose turn it is: 1 or 2."""
    return 2 - board.count(0) % 2


def take(board: Board, cell: int) -> Board:
    """The board after that player has taken a cell."""
    return (*board[:cell], to_move(board), *board[cell + 1 :])


def end_of(board: Board, own: int, probability: Fraction = Fraction(1)) -> Ends | None:
    """How the game has ended for player `own`; None where it goes on."""
    winner = next((board[i] for i, j, k in _ROWS if board[i] and board[i] == board[j] == board[k]), 0)
    if winner:
        return NEVER._replace(**{"won" if winner == own else "lost": probability})
    return None if free_cells(board) else NEVER._replace(drawn=probability)


def add(ends: Iterator[Ends] | list[Ends]) -> Ends:
    """The sum, by how games end."""
    return Ends(*map(sum, zip(NEVER, *ends, strict=True)))


def lines_of_play(choose: Callable[[Board], int], own: int) -> Iterator[Ends]:
    """Every game of player `own` (1 begins), who takes `choose(board)`, with its probability against random play."""

    def go_on(board: Board, probability: Fraction) -> Iterator[Ends]:
        end = end_of(board, own, probability)
        if end is not None:
            yield end
        elif to_move(board) == own:
            yield from go_on(take(board, choose(board)), probability)
        else:
            free = free_cells(board)
            for cell in free:
                yield from go_on(take(board, cell), probability / len(free))

    return go_on(EMPTY, Fraction(1))


def best_play(own: int, worth: Callable[[Ends], Any]) -> Ends:
    """What player `own` gets from random play at best, where ends are compared by their `worth`."""

    @cache
    def go_on(board: Board) -> Ends:
        end = end_of(board, own)
        if end is not None:
            return end
        after = [go_on(take(board, cell)) for cell in free_cells(board)]
        if to_move(board) == own:
            return max(after, key=worth)
        return Ends(*(share / len(after) for share in add(after)))

    return go_on(EMPTY)


def main() -> None:
    """A line for each worth: as first player, as second, and the mean."""
    for worth in (never_losing, scored, won_at_all_costs):
        sides = [best_play(own, worth) for own in (1, 2)]
        mean = Ends(*(share / 2 for share in add(sides)))
        cells = (" / ".join(f"{float(share):.2%}" for share in ends) for ends in (*sides, mean))
        print(worth.__name__, *cells, sep=" | ")


if __name__ == "__main__":
    main()
