"""Calls every entry point of the kernels with one argument at a time that does not belong there; prints how many it refused.

A program of its own, since what it looks for ends a process.
"""

import copy
import pickle
import uuid

import numpy as np

from relayrl.compiled import _kernels as k

f4 = np.float32
HUGE = (2**31, 2**62, 2**63 - 1, 2**64, -1, -(2**63))


class Liar:
    """Says of itself whatever makes trouble."""

    def __len__(self):
        raise RuntimeError("no length")

    def __float__(self):
        raise RuntimeError("no number")

    __index__ = __float__


def hostile() -> list:
    """No arrays of objects: dtypes are the caller's affair, and numbers written over objects end any process."""
    tables = [
        np.zeros(shape, dtype) for shape in ((0,), (1,), (3,), (2, 2), (4, 3)) for dtype in (f4, np.float64, np.int64)
    ]
    beyond = [np.full(8, number, np.int64) for number in (-1, 5, 2**40, 2**63 - 1, -(2**63))]
    odd = [np.full((4, 3), np.nan, f4), np.zeros((6, 6), f4)[::2, ::2]]
    plain = [
        None,
        0,
        1,
        1e300,
        float("nan"),
        "x",
        b"",
        b"1234567",
        bytearray(),
        (),
        [],
        {},
        ((),),
        ([],),
        [[]],
        Liar(),
        object,
    ]
    read_only = np.zeros(4, f4)
    read_only.flags.writeable = False
    return [
        *plain,
        *HUGE,
        *tables,
        *beyond,
        *odd,
        read_only,
        (2**31,),
        (2**63,),
        (1,) * 100,
        ((1, 2),) * 5,
        (None,) * 8,
    ]


def mlp(is_frozen: bool = False):
    return k.MLP(((np.ones((4, 3), f4), np.ones(4, f4)), (np.ones((1, 4), f4), np.ones(1, f4))), True, is_frozen)


def tape(is_kept: bool = True):
    return k.Tape(mlp(), is_kept)


def job(**own) -> dict:
    parameters = 21
    vectors = {name: np.zeros(parameters, f4) for name in ("vector", "first_moment", "second_moment")}
    numbers = {"num_steps": 0, "learning_rate": 0.1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-5, "max_norm": 0.5}
    rows = {
        "num_rows": 4,
        "num_passes": 2,
        "minibatch_rows": 3,
        "order": np.tile(np.arange(4), (2, 1)),
        "is_factored": 0,
    }
    return {
        "sizes": (3, 4, 1),
        "is_tanh": True,
        "inputs": ((np.ones((4, 3), f4), None),),
        **vectors,
        **numbers,
        **rows,
        **own,
    }


def policy_job(**own) -> dict:
    loss = {"is_surrogate": True, "clip_ratio": 0.2, "entropy_coef": 0.1, "kl_limit": 1.0, "logp": np.zeros(4, f4)}
    choice = {"part_sizes": (1,), "action": np.zeros(4, np.int64), "mask": None, "advantage": np.ones(4, f4)}
    return job(**{**loss, **choice, **own})


def value_job(**own) -> dict:
    return job(**{"clip": -1.0, "target": np.ones(4, f4), "old_value": np.ones(4, f4), **own})


def tree() -> list:
    """A tree of sums with a level of 16 and one of 32: two nodes of leaves."""
    return [np.ones(48), np.arange(1.0, 17.0), np.array([0, 16])]


def x(rows: int = 4, columns: int = 3) -> np.ndarray:
    return np.ones((rows, columns), f4)


IDS = [uuid.UUID(int=1), uuid.UUID(int=2)]
HEADERS = tuple(np.ones(2, dtype) for dtype in (np.int64, np.int64, np.int64, np.int32, np.int32, bool, bool, bool))
BEGINS = tuple(range(0, 11 * 64, 64))

VALID = {
    "MLP": lambda: (k.MLP, [((x(), x(1, 4)), (x(1, 4), x(1, 1))), True, True]),
    "MLP.forward": lambda: (mlp().forward, [x(), x(4, 1), 2]),
    "MLP.forward_parts": lambda: (mlp().forward_parts, [((x(), None),), True, x(4, 1), 2]),
    "MLP.choose": lambda: (
        mlp(True).choose,
        [x(), (1,), np.zeros(4, f4), np.ones((4, 1), bool), np.zeros(4, np.int64), np.zeros(4, f4), 2],
    ),
    "MLP.draw_normal": lambda: (
        mlp().draw_normal,
        [x(), x(4, 1), x(1, 1), x(1, 1), x(1, 1), x(4, 1), np.zeros(4, f4), 2],
    ),
    "MLP.hold": lambda: (mlp().hold, []),
    "MLP.release": lambda: (mlp().release, []),
    "Tape": lambda: (k.Tape, [mlp(), True]),
    "Update": lambda: (k.Update, [policy_job(), value_job(), 2]),
    "Update.finish": lambda: (k.Update(policy_job(), value_job(), 2).finish, []),
    "forward_tapes": lambda: (k.forward_tapes, [(tape(), tape(False)), (x(), x()), (x(4, 1), x(4, 1)), 2]),
    "backward_tapes": lambda: (k.backward_tapes, [(forwarded(),), (x(4, 1),), (np.zeros(21, f4),), 2]),
    "regress_tapes": lambda: (
        k.regress_tapes,
        [(tape(),), ((x(), np.arange(4)),), False, x(4, 1), x(4, 1), (x(4, 1),), (np.zeros(21, f4),), 2],
    ),
    "min_q": lambda: (
        k.min_q,
        [(mlp(),), ((x(), None),), False, np.ones(4, np.int64), x(4, 2), x(4, 1), x(4, 1), x(4, 2), 2],
    ),
    "adam_step": lambda: (k.adam_step, [*(np.ones(5, f4) for _ in range(4)), 0, 0.1, 0.9, 0.99, 1e-5, 0.5, 2]),
    "soft_update": lambda: (k.soft_update, [np.ones(5, f4), np.ones(5, f4), 0.5, 2]),
    "set_priorities": lambda: (k.set_priorities, [*tree(), np.array([3, 20]), np.array([2.0, 2.0])]),
    "find_priorities": lambda: (k.find_priorities, [*tree(), np.array([0.5, 1e9]), np.zeros(2, np.int64)]),
    "advantages": lambda: (
        k.advantages,
        [2, 3, x(2), x(2), x(2), np.zeros((2, 3), bool), np.zeros((2, 3), bool), 0.9, 0.9, x(2)],
    ),
    "step_cart_poles": lambda: (
        k.step_cart_poles,
        [x(4, 2), np.zeros(2, np.int64), x(1, 2), x(1, 2), np.ones(8, f4), x(2, 4), np.zeros(2, bool)],
    ),
    "CartPoles": lambda: (k.CartPoles, [x(4, 2), np.ones(8, f4), 0.05, False]),
    "Pendulums": lambda: (k.Pendulums, [x(2, 2), np.ones(7, f4), x(1, 2), (3.0, 1.0)]),
    "collect_rows": lambda: (k.collect_rows, rollout()),
    "numpy_function": lambda: (k.numpy_function, [0, x(), x()]),
    "measure_offsets": lambda: (
        k.measure_offsets,
        [2, 3, 5, 6, 1, x(2, 30), np.array([0, 1, 2, 3, 4, 5]), x(2, 30), x(1, 30)],
    ),
    "find_contacts": lambda: (
        k.find_contacts,
        [2, 3, 5, 1, x(2, 2), x(6, 5), 0.1, 60.0, np.zeros(5, np.int64), np.zeros(20, np.int32), x(1, 21)],
    ),
    "add_pushes": lambda: (
        k.add_pushes,
        [2, 3, 5, 1, x(2, 2), *contacts(), x(1, 4), x(12, 5), x(6, 5), 0.1, -0.1, 1e-9, x(4, 5)],
    ),
    "SpreadStep": lambda: (k.SpreadStep, spread()),
    "SpreadStep.find_contacts": lambda: (k.SpreadStep(*spread()).find_contacts, []),
    "SpreadStep.step": lambda: (k.SpreadStep(*spread()).step, [np.ones((5, 3), np.int64), 2]),
    "SpreadStep.observe": lambda: (k.SpreadStep(*spread()).observe, [2]),
    "decode_moves": lambda: (k.decode_moves, [2, 3, 5, x(6, 5), 5.0, x(2, 3), x(2, 3)]),
    "move_bodies": lambda: (
        k.move_bodies,
        [2, 5, 6, 3, 1, x(12, 5), x(6, 5), x(4, 5), x(4, 5), 0.1, 0.75],
    ),
    "sum_grid": lambda: (k.sum_grid, [bytes(5 * 4096), np.zeros(512, np.uint64), np.zeros(5, np.uint64)]),
    "join_rows": lambda: (k.join_rows, [[[x(2), x(2)]], np.array([2, 2]), (x(4),)]),
    "attributes": lambda: (k.attributes, [[*IDS], ("int", "hex")]),
    "all_alike": lambda: (k.all_alike, [[[1, 1]], [[None, None]]]),
    "uuid_bytes": lambda: (k.uuid_bytes, [[*IDS]]),
    "uuid_texts": lambda: (k.uuid_texts, [[i.bytes for i in IDS], np.zeros((2, 36), np.uint8)]),
    "header_numbers": lambda: (
        k.header_numbers,
        [([1, 1], [1, 1], ["a", "b"], *[[True, False]] * 3), np.zeros((3, 2), np.int64), np.zeros((3, 2), bool)],
    ),
    "headers_fit": lambda: (
        k.headers_fit,
        [*(np.ones(2, np.int64) for _ in range(3)), *(np.ones(2, bool) for _ in range(2))],
    ),
    "spread_headers": lambda: (k.spread_headers, [HEADERS, 2, BEGINS, np.zeros(11 * 64, np.uint8)]),
    "copy_records": lambda: (
        k.copy_records,
        [
            *(x(2, 1), ([b"t", b"t"],), (((x(2, 1).data.cast("B"), 4),),), ((x(2, 1).data.cast("B"), 4),)),
            *(np.ones(2, np.int64), 0, 0, bytearray(2 * (4 + 5 + 8 + 8))),
        ],
    ),
    "check_stream": lambda: (k.check_stream, [bytes(300), stream_plan()]),
    "team_values": lambda: (k.team_values, [*team(), np.zeros(3, f4), np.zeros((3, 2), f4), 2]),
    "team_gradient": lambda: (
        k.team_gradient,
        [
            *(*team(), np.array([0, 2]), np.zeros(3, f4), np.zeros(3, f4), np.zeros((3, 2), f4)),
            *(0.2, 0.5, np.zeros(TEAM_PARAMETERS, f4), 2),
        ],
    ),
    "TeamPasses": lambda: (k.TeamPasses, team_passes()),
    "TeamPasses.finish": lambda: (k.TeamPasses(*team_passes()).finish, []),
    "instruction_sets": lambda: (k.instruction_sets, []),
    "use_instruction_set": lambda: (k.use_instruction_set, [k.instruction_sets()[0]]),
}
"""How each is called rightly, made anew for each call."""


TEAM_PARAMETERS = 121
"""Layers 3 → 4 and 2 → 4, norms, three square layers of 4, and 5 → 4 → 1 behind them."""


def team() -> list:
    """The critic of three teams of two agents, with three features and two actions each."""
    columns = np.ones((3, 2, 3), f4), np.ones((3, 2, 2), f4), np.ones((3, 2), bool)
    return [(3, 2, 4, 2, (5, 4, 1), 2, True), np.zeros(TEAM_PARAMETERS, f4), *columns]


def contacts() -> tuple:
    """Three worlds of the first of four pairs in which it is close."""
    return np.array([0, 3, 3, 3, 3]), np.array([0, 2, 4] + [0] * 17, np.int32)


def spread() -> list:
    """Five worlds of three agents, which see two landmarks and all others."""
    arrays = x(12, 5), x(6, 5), x(30, 5), x(15, 5), x(5, 3), np.zeros(5, bool), x(3, 2), x(1, 31), x(15, 16)
    return [(3, 5, 2, 0), False, True, (5.0, 0.1, 0.75), (1e-3, 60.0, -0.1, 1e-12), (0.5, 0.3, 0.1), arrays]


def rollout() -> list:
    """Three steps of two pendulums, the limit of whose episodes is two."""
    pendulums = k.Pendulums(x(2, 2), np.ones(7, f4), x(1, 2), (3.0, 1.0))
    flags, numbers = np.zeros((3, 2), bool), np.zeros((3, 2), np.int64)
    return [
        *(pendulums, tuple(np.zeros((3, 2), np.int64)), 2, False, mlp(), x(3, 2), tuple(x(3, 1)), tuple(x(2, 3)), 5.0),
        (np.zeros((3, 2, 3), f4), x(3, 2), x(3, 2), x(3, 2), flags.copy(), flags),
        (np.zeros((3, 2, 3), f4), np.zeros((3, 2)), numbers.copy()),
        (np.zeros(2), np.zeros(2, np.int64)),
        *(7, (numbers.copy(), numbers, np.zeros(2, np.int64), np.zeros(2, np.int64)), 3, 2),
    ]


def team_passes() -> list:
    """Two passes over these teams in minibatches of two."""
    shape, vector, *columns = team()
    adam = vector, np.zeros(TEAM_PARAMETERS, f4), np.zeros(TEAM_PARAMETERS, f4)
    order, targets = np.array([[2, 0, 1], [0, 1, 2]]), (np.zeros(3, f4), np.zeros(3, f4), np.zeros((3, 2), f4))
    return [shape, *adam, *columns, order, *targets, 2, 2, 0.2, 0.5, 0, 1e-3, 0.9, 0.999, 1e-5, 0.5, 2]


def stream_plan() -> tuple:
    """Five messages of 100 bytes, no columns."""
    heads = np.array([(100 * i, 100, 0, 0, 0, 0) for i in range(4)] + [(400, 300, 0, 0, 0, 0)], np.int64).tobytes()
    return b"schema", bytes(700), bytes(700), b"group", heads, b"", b""


def forwarded():
    made = tape()
    k.forward_tapes((made,), (x(),), (x(4, 1),), 1)
    return made


def public_names() -> set[str]:
    names = {name for name, value in vars(k).items() if not name.startswith("_") and callable(value)}
    types = [vars(k)[name] for name in names if isinstance(vars(k)[name], type)]
    return names | {f"{t.__name__}.{name}" for t in types for name in vars(t) if not name.startswith("_")}


def refuses(call, arguments: list) -> bool:
    try:
        call(*arguments)
    except Exception:  # noqa: BLE001 - any will do: what must not happen is that the process ends
        return True
    return False


def refuses_instead(make, i: int, stranger) -> bool:
    """Whether a right call with one argument exchanged is refused."""
    call, arguments = make()
    return refuses(call, [*arguments[:i], stranger, *arguments[i + 1 :]])


def call_with_strangers() -> int:
    refused = 0
    for make in VALID.values():
        call, arguments = make()
        call(*arguments)
        for i, right in enumerate(arguments):
            for stranger in hostile():
                refused += refuses_instead(make, i, stranger)
                if isinstance(right, tuple | list) and right:
                    refused += refuses_instead(make, i, type(right)([stranger, *right[1:]]))
        refused += refuses(call, [*arguments, None])
    for name in job() | policy_job() | value_job():
        for stranger in hostile():
            refused += refuses(k.Update, [policy_job(**{name: stranger}), value_job(), 2])
            refused += refuses(k.Update, [policy_job(), value_job(**{name: stranger}), 2])
        for jobs in ([policy_job(), value_job()], [policy_job(), value_job()]):
            for each in jobs:
                each.pop(name, None)
            refused += refuses(k.Update, [*jobs, 2])
    return refused


def require_nothing_half_made() -> None:
    for made in (
        mlp(),
        tape(),
        k.Update(policy_job(), value_job(), 1),
        k.TeamPasses(*team_passes()),
        k.SpreadStep(*spread()),
        VALID["CartPoles"]()[0](*VALID["CartPoles"]()[1]),
        rollout()[0],
    ):
        kind = type(made)
        assert refuses(kind.__new__, [kind]), kind
        assert refuses(object.__new__, [kind]), kind
        assert refuses(kind.__new__, [object]), kind
        made.__init__()
        repr(made), hash(made), dir(made)
        assert refuses(copy.copy, [made])
        assert all(refuses(pickle.dumps, [made, protocol]) for protocol in range(6))


def require_refusals_by_name() -> None:
    """Those that once were taken, or ended the process."""
    empty, flat = np.zeros(0, f4), np.zeros(21, f4)
    for T, L in ((2**32, 2**32), (-1, -1), (2**62, 4)):
        assert refuses(k.advantages, [T, L, *[empty] * 5, 0.9, 0.9, empty]), (T, L)
    for without_pass in (tape(), regressed(), forward_only()):
        assert refuses(k.backward_tapes, [(without_pass,), (empty,), (flat,), 1])
    assert refuses(k.Update, [policy_job(num_passes=2**62, num_rows=4), value_job(), 1])
    passes = team_passes()
    assert refuses(k.TeamPasses, [*passes[:11], 2**62, *passes[12:]])
    assert refuses(k.TeamPasses, [*passes[:7], np.full((2, 3), 3), *passes[8:]])
    assert refuses(k.TeamPasses, [*passes[:7], None, *passes[8:]])
    require_refused_particles()
    require_refused_rollouts()
    call, arguments = VALID["copy_records"]()
    assert refuses(call, [*arguments[:5], 2**63 - 1, 0, arguments[7]])
    assert refuses(call, [*arguments[:6], 2**63 - 1, arguments[7]])
    objects = [np.array([object()], object)]
    assert not k.join_rows([objects], np.array([1]), (np.empty(1, object),))
    rows = np.zeros(3, np.int64)
    k.find_priorities(np.zeros(48), np.zeros(48), np.array([0, 16]), np.array([1e9, -1.0, np.nan]), rows)
    assert rows.min() >= 0
    assert rows.max() < 32


def require_refused_rollouts() -> None:
    """Each array that is too short, not writable or not there, sizes that do not fit, and worlds of another kind."""
    for i, right in enumerate(rollout()):
        for j in range(len(right)) if isinstance(right, tuple) else ():
            for stranger in (
                right[j].ravel()[1:],
                np.repeat(right[j], 2)[::2],
                np.repeat(right[j], 2),
                b"12345678",
                None,
            ):
                is_optional = stranger is None and (i, j) == (9, 2)
                is_same = right[j].size == 1 and isinstance(stranger, np.ndarray) and stranger.size == 1
                given = rollout()
                given[i] = (*right[:j], stranger, *right[j + 1 :])
                assert is_optional or is_same or refuses(k.collect_rows, given), (i, j)
        if isinstance(right, tuple):
            given = rollout()
            given[i] = right[1:]
            assert refuses(k.collect_rows, given), i
    rights = rollout()
    for num_rows in (0, -1, 2, 4, 2**40, 2**62, 2**63 - 1):
        assert refuses(k.collect_rows, [*rights[:14], num_rows, 2]), num_rows
    carts, none = k.CartPoles(*VALID["CartPoles"]()[1]), k.Pendulums(x(2, 0), np.ones(7, f4), x(1, 0), (3.0, 1.0))
    for worlds in (carts, none, k.SpreadStep(*spread()), mlp()):
        assert refuses(k.collect_rows, [worlds, *rights[1:]])
    assert refuses(k.collect_rows, [*rights[:6], None, *rights[7:]])
    for limit in (-(2**63), 2**63 - 1):
        k.collect_rows(*rights[:2], limit, *rights[3:])
    k.collect_rows(*rights[:5], np.full((3, 2), np.nan, f4), *rights[6:])


def require_refused_particles() -> None:
    """Sizes that do not fit, each array that is too short, and lists of contacts that lead elsewhere."""
    for sizes in ((0, 5, 2, 0), (2**20, 2**20, 2**20, 2**20), (3, 6, 2, 0), (3, 5, 3, 0), (3, 5, 2, 1), (3, 5, -1, 0)):
        assert refuses(k.SpreadStep, [sizes, *spread()[1:]]), sizes
    *settings, arrays = spread()
    read_only = np.zeros((12, 5), f4)
    read_only.flags.writeable = False
    for i, array in enumerate(arrays):
        for stranger in (array.ravel()[1:], array[:, ::2] if array.ndim > 1 else array[::2], array.astype(np.float64)):
            assert refuses(k.SpreadStep, [*settings, (*arrays[:i], stranger, *arrays[i + 1 :])]), i
    assert refuses(k.SpreadStep, [*settings, (read_only, *arrays[1:])])
    continuous = k.SpreadStep(settings[0], True, *settings[2:], arrays)
    assert refuses(continuous.step, [np.ones((5, 3), np.int64), 1])
    continuous.step(np.full((5, 3, 5), np.nan, f4), 1)
    choices = k.SpreadStep(*settings, arrays)
    choices.step(np.full((5, 3), 2**62), 2**31 - 1)
    choices.step(np.full((5, 3), -(2**62)), -(2**31))
    call, arguments = VALID["add_pushes"]()
    for start in (
        [0, 3, 2, 3, 3],
        [0, 0, 0, 0, 4],
        [-1, 3, 3, 3, 3],
        [0, 2**62, 3, 3, 3],
        [0, 0, 0, 0, -1],
        [1, 3, 3, 3, 3],
    ):
        assert refuses(call, [*arguments[:5], np.array(start), *arguments[6:]]), start
    for close in ([-1, 5, 2**31 - 1], [4, 2, 0], [-(2**31)] * 3):  # in which no world of theirs is found
        call(*arguments[:6], np.array(close + [0] * 17, np.int32), *arguments[7:])


def regressed():
    made = tape()
    k.regress_tapes((made,), ((x(), None),), False, x(4, 1), x(4, 1), (x(4, 1),), (np.zeros(21, f4),), 1)
    return made


def forward_only():
    made = tape(False)
    k.forward_tapes((made,), (x(),), (x(4, 1),), 1)
    return made


if __name__ == "__main__":
    assert public_names() == set(VALID), public_names() ^ set(VALID)
    require_nothing_half_made()
    require_refusals_by_name()
    print(call_with_strangers())
