"""The compiled kernels. Arrays are C-contiguous, of the dtypes given, and float32 where nothing is said."""

from typing import Any, TypeAlias, TypedDict

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Parts: TypeAlias = tuple[tuple[Array, Array | None], ...]
"""Inputs side by side: a table [K, I] each, and each row's line in it, int64 [M]; row r has line r where that is None."""

MAX_LAYERS: int
"""Of a mlp."""
MAX_PARTS: int
"""Choices of an action."""
MAX_THREADS: int
"""Of one call; more are taken for this many. No result depends on the number."""

class Sums(TypedDict):
    """Metrics of all gradient steps, added up, and why there were no more: the KL limit, or a loss that is not finite."""

    loss: float
    kl: float
    entropy: float
    clip_fraction: float
    gradient_norm: float
    num_steps: int
    is_stopped: bool
    bad_loss: float
    adam_steps: int

class MLP:
    """Linear layers `(weight [out, in], bias [out])` with tanh or relu between them, on the arrays' own memory.

    With `is_frozen` they are taken over when it is made, which saves reading them on every call.
    """

    def __init__(self, layers: tuple[tuple[Array, Array], ...], is_tanh: bool, is_frozen: bool = False, /) -> None: ...
    def forward(self, x: Array, out: Array, threads: int, /) -> None:
        """`out` [M, O] of `x` [M, I]."""
    def forward_parts(self, inputs: Parts, is_factored: bool, out: Array, threads: int, /) -> None:
        """The same of rows whose inputs lie in parts. Factored, the first layer multiplies each line of a table once."""
    def choose(
        self,
        x: Array,
        part_sizes: tuple[int, ...],
        draws: Array,
        mask: Array | None,
        choice: Array,
        logp: Array | None,
        threads: int,
        /,
    ) -> None:
        """`choice` int64 [M, parts] and `logp` [M] from uniform `draws` [parts, M]; `mask` bool [M, O]."""
    def draw_normal(
        self,
        x: Array,
        noise: Array,
        log_std: Array,
        scale: Array,
        center: Array,
        action: Array,
        logp: Array | None,
        threads: int,
        /,
    ) -> None:
        """`action` [M, A] and `logp` [M] from standard normal `noise` [M, A]."""
    def hold(self) -> None:
        """Act with the parameters as they are now, read once; nobody changes them until `release`."""
    def release(self) -> None:
        """Act with live parameters again."""

class Tape:
    """A mlp that keeps its memory between calls."""

    def __init__(self, mlp: MLP, is_differentiated: bool, /) -> None:
        """Without `is_differentiated` there is a forward pass only, which touches less memory."""

class Update:
    """Passes over minibatches for an actor and a critic; `accelerator.on_policy_kernels` says what the dicts hold.

    When it is made the actor's steps are taken; with several threads, the critic's may go on until `finish`. Without a
    `value` there are none of a critic.
    """

    def __init__(self, policy: dict[str, Any], value: dict[str, Any] | None, threads: int, /) -> None: ...
    def finish(self) -> tuple[Sums, Sums]:
        """Wait until all steps are taken; sums over those of the actor and of the critic."""

def forward_tapes(tapes: tuple[Tape, ...], x: tuple[Array, ...], out: tuple[Array, ...], threads: int, /) -> None:
    """Each tape's `out` [M, O] from its `x` [M, I]. Threads take tapes, and blocks of their rows."""

def backward_tapes(
    tapes: tuple[Tape, ...], gradient: tuple[Array, ...], flat: tuple[Array, ...], threads: int, /
) -> None:
    """Gradients of all parameters, in their order, given those of the last outputs [M, O]."""

def regress_tapes(
    tapes: tuple[Tape, ...],
    inputs: Parts,
    is_factored: bool,
    target: Array,
    share: Array,
    out: tuple[Array, ...],
    flat: tuple[Array, ...],
    threads: int,
    /,
) -> float:
    """Outputs `out` [M, O] of all tapes, and gradients `flat` of each one's loss Σ ½ `share` (`out` − `target`)²; gives the
    sum of the losses."""

def min_q(
    MLPs: tuple[MLP, ...],
    inputs: Parts,
    is_factored: bool,
    first: Array,
    own: Array,
    share: Array,
    minimum: Array,
    by_own: Array,
    threads: int,
    /,
) -> None:
    """`minimum` [M] of the single outputs for rows that have `own` [M, A] in the columns from `first` int64 [M] on,
    and `by_own` [M, A], the gradient of Σ `share` `minimum` by it."""

TeamShape: TypeAlias = tuple[int, int, int, int, tuple[int, ...], int, bool]
"""A team's critic: features, actions, units and heads of the attention, sizes of what lies behind it, agents, and whether
activations are tanh."""

MAX_AGENTS: int
"""Of a team."""

MAX_ATTENTION: int
"""Units of its attention."""

def team_values(
    shape: TeamShape,
    vector: Array,
    features: Array,
    actions: Array,
    present: Array,
    value: Array,
    baseline: Array,
    threads: int,
    /,
) -> None:
    """`value` [M] and `baseline` [M, N] of teams: `features` [M, N, F], `actions` [M, N, A], `present` bool [M, N].

    `vector` holds the parameters of `models.teams.team_critic`, in torch's order."""

def team_gradient(
    shape: TeamShape,
    vector: Array,
    features: Array,
    actions: Array,
    present: Array,
    chosen: Array,
    target: Array,
    old_value: Array,
    old_baseline: Array,
    clip: float,
    baseline_weight: float,
    gradient: Array,
    threads: int,
    /,
) -> tuple[float, float]:
    """`gradient` of value loss + `baseline_weight` · baseline loss over the teams `chosen` int64 [K]; gives both losses.

    `clip` is that of the values; negative: none."""

class TeamSums(TypedDict):
    """Sums over the gradient steps of a team's critic."""

    loss: float
    baseline_loss: float
    gradient_norm: float
    num_steps: int
    bad_loss: float

class TeamPasses:
    """All gradient steps of a team's critic over the passes of `order` int64 [P, M], which may be None where a minibatch is
    all teams. With several threads they may go on until `finish`; arrays are held until then."""

    def __init__(
        self,
        shape: TeamShape,
        vector: Array,
        first_moment: Array,
        second_moment: Array,
        features: Array,
        actions: Array,
        present: Array,
        order: Array | None,
        target: Array,
        old_value: Array,
        old_baseline: Array,
        num_passes: int,
        minibatch_teams: int,
        clip: float,
        baseline_weight: float,
        num_steps: int,
        learning_rate: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        max_norm: float,
        threads: int,
        /,
    ) -> None: ...
    def finish(self) -> TeamSums:
        """Wait until all steps are taken; sums over them."""

def adam_step(
    vector: Array,
    gradient: Array,
    first_moment: Array,
    second_moment: Array,
    num_steps: int,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    max_norm: float,
    threads: int,
    /,
) -> float:
    """Clip the gradient's norm and step; gives the norm. `num_steps` are those taken before."""

def soft_update(target: Array, source: Array, share: float, threads: int, /) -> None:
    """Move `target` by a share of its distance to `source`."""

def set_priorities(sums: Array, ends: Array, starts: Array, where: Array, priority: Array, /) -> None:
    """Replace leaves of a tree of sums (`training.priority_sums`), and the sums above them; `starts` and `where` are int64,
    everything else is float64."""

def find_priorities(sums: Array, ends: Array, starts: Array, points: Array, rows: Array, /) -> None:
    """`rows` int64 [M]: the leaves that lie at `points` [M], which are used up."""

def advantages(
    num_steps: int,
    num_lanes: int,
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: float,
    lam: float,
    out: Array,
    /,
) -> None:
    """`out` [T, L] as `algorithms.returns.gae`, where every lane acts on every row; flags are bool."""

def step_cart_poles(
    motion: Array,
    action: Array,
    sine: Array,
    cosine: Array,
    constants: Array,
    observation: Array,
    terminated: Array,
    /,
) -> None:
    """One step of `motion` [4, B] float32; `constants` [8] are those of `CartPoleWorlds`, `sine` and `cosine` the angle's."""

class CartPoles:
    """Carts and poles that a rollout steps, on the arrays of `CartPoleWorlds`."""

    def __init__(self, motion: Array, constants: Array, initial_bound: float, pays_at_end: bool, /) -> None:
        """`motion` [4, B]; `constants` as in `step_cart_poles`."""

class Pendulums:
    """The same of `PendulumWorlds`."""

    def __init__(self, motion: Array, constants: Array, pull: Array, initial_bounds: tuple[float, float], /) -> None:
        """`motion` [2, B], `constants` [7], `pull` [B]; the bounds are those of angle and speed."""

def collect_rows(
    worlds: CartPoles | Pendulums | SpreadStep,
    running: tuple[Array, Array, Array],
    limit: int,
    limit_hides_end: bool,
    policy: MLP,
    noise: Array,
    normal: tuple[Array, Array, Array] | None,
    moments: tuple[Array, Array] | None,
    clip: float,
    rows: tuple[Array, Array, Array | None, Array, Array, Array],
    ends: tuple[Array, Array, Array],
    episodes: tuple[Array, Array],
    num_steps: int,
    clock: tuple[Array, Array, Array, Array] | None,
    num_rows: int,
    threads: int,
    /,
) -> None:
    """Act and step `num_rows` times. Lanes are [L] = [B · N], episodes and the clock's numbers int64 [B].

    `running` are stream keys, episodes and elapsed steps; `noise` [T, L] is uniform, or [T, L, A] standard normal with a
    `normal` (log deviation, scale, center [A]). Observations are clip((x − shift) · scale) by `moments` [O]. Written are
    `rows` (observation, action, log-probability, reward, terminated, truncated: [T, L, …]), where lanes end `ends` (last
    observation [T, L, O], return float64 [T, L], beginning int64 [T, B]), `episodes` (sums of rewards float64 [L], beginning
    [B]) and `clock` (episode and step of each row [T, B], and of the next [B]). Of `worlds`, the state alone changes.
    """

def numpy_function(function: int, x: Array, out: Array, /) -> bool:
    """`out` is `x` by NumPy's own loop for sin, cos, exp or log1p, by number; False where the loops are not known."""

def measure_offsets(
    num_observers: int,
    num_seen: int,
    num_worlds: int,
    num_bodies: int,
    first_observer: int,
    position: Array,
    seen: Array,
    offset: Array,
    distance: Array,
    /,
) -> None:
    """As `Geometry.update`: `offset` [2, N, K, B] and `distance` [N, K, B] from `position` [2, E, B]; `seen` [N, K] int64."""

def find_contacts(
    num_agents: int,
    num_seen: int,
    num_worlds: int,
    first_column: int,
    reach: Array,
    distance: Array,
    margin: float,
    bound: float,
    start: Array,
    close: Array,
    exponent: Array,
    /,
) -> int:
    """As `Contacts.force` up to the exponential, of the columns from `first_column` on of `distance` [N, K, B].

    `close` int32 [N, C, B] lists the worlds in which a pair [N, C] is within the bound, from `start` int64 [N · C + 1] on, and
    `exponent` [1 + N · C · B] their exponents, after the one of all others. Gives the number of exponents.
    """

def add_pushes(
    num_agents: int,
    num_seen: int,
    num_worlds: int,
    first_column: int,
    reach: Array,
    start: Array,
    close: Array,
    soft: Array,
    offset: Array,
    distance: Array,
    margin: float,
    factor: float,
    tiny: float,
    force: Array,
    /,
) -> None:
    """As `Contacts.force` after the logarithm `soft` of `find_contacts`' exponents: `force` [2, N, B]."""

def decode_moves(
    num_agents: int,
    num_worlds: int,
    action_size: int,
    action: Array,
    acceleration: float,
    by_x: Array,
    by_y: Array,
    /,
) -> None:
    """As `GroupControls` makes of continuous actions [B, N, A] the forces `by_x` and `by_y` [N, B]."""

def move_bodies(
    num_movers: int,
    num_worlds: int,
    num_bodies: int,
    num_agents: int,
    first_mover: int,
    position: Array,
    velocity: Array,
    force: Array,
    push: Array | None,
    step_s: float,
    keep: float,
    /,
) -> None:
    """As `ParticleWorlds._move` without a limit of speed; `force` and `push` [2, N, B]."""

class SpreadStep:
    """A step of `SimpleSpreadWorlds` on the arrays' own memory: N agents, `2 N − 1` things that each sees, B worlds."""

    def __init__(
        self,
        sizes: tuple[int, int, int, int],
        is_continuous: bool,
        ends_when_covered: bool,
        motion: tuple[float, float, float],
        contact: tuple[float, float, float, float],
        reward: tuple[float, float, float],
        arrays: tuple[Array, ...],
        /,
    ) -> None:
        """`sizes`: N, B, and how many landmarks and other agents are seen, the nearest; 0: all.

        `motion`: acceleration, seconds of a step, share of the velocity that is kept. `contact`: margin, bound, factor and
        least distance, as in `Contacts`. `reward`: weight of an agent's own, where agents touch, where landmarks are covered.
        `arrays`: position, velocity, offset, distance, reward [B, N], terminated [B] bool, reach [N, N - 1],
        exponent [1 + N (N - 1) B] and observation [B, N, O].
        """
    def find_contacts(self) -> int:
        """Write the exponents of softplus, and give how many there are."""
    def step(self, action: Array, threads: int, /) -> None:
        """One step, with log(1 + exp) where `find_contacts` wrote; `action` int64 [B, N] or float32 [B, N, 5]."""
    def observe(self, threads: int, /) -> None:
        """Make offset, distance and observation follow from position and velocity."""

def sum_grid(data: bytes | memoryview, columns: Array, sums: Array, /) -> None:
    """Add rows of 512 words of 64 bits, as many as `sums`, to `columns` [512], and write the sum of each row, modulo 2**64."""

def join_rows(columns: list[list[Any]], num_steps: Array | None, outs: tuple[Array, ...], /) -> bool:
    """Each column's plain contiguous arrays, with so many rows each, one after the other in its `out`.

    `num_steps` [K] is int64; without it, each array is one row and lacks the axis of rows. False where an array is not that.
    """

def attributes(objects: list[Any], names: tuple[str, ...], /) -> list[list[Any]]:
    """For each name, that attribute of every object."""

def all_alike(identical: list[list[Any]], optional: list[list[Any]], /) -> bool:
    """Whether each of `identical` holds one object only, and each of `optional` None everywhere or nowhere."""

def uuid_bytes(ids: list[Any], /) -> list[bytes] | None:
    """The 16 bytes of each UUID; None where one is not that."""

def uuid_texts(ids: list[bytes], out: Array, /) -> None:
    """`out` [K, 36]: each id as text."""

def header_numbers(columns: tuple[list[Any], ...], numbers: Array, flags: Array, /) -> bool:
    """Two columns of ints and the lengths of a third as int64 [3, K], three of bools as bool [3, K]; False if they are not."""

def headers_fit(num_steps: Array, first_step: Array, episode: Array, truncated: Array, failed: Array, /) -> bool:
    """Whether all have steps and numbers of 64 bits that are not negative, and who failed is truncated."""

def spread_headers(given: tuple[Array, ...], num_rows: int, begins: tuple[int, ...], memory: Any, /) -> None:
    """Fill the columns that begin at those bytes of `memory`; `data.arrow.arrow_writing.HeaderColumns` says which."""

def copy_records(
    fixed: Array,
    texts: tuple[list[bytes], ...],
    data: tuple[tuple[tuple[memoryview, int], ...], ...],
    finals: tuple[tuple[memoryview, int], ...],
    num_steps: Array,
    first: int,
    first_row: int,
    out: Array,
    /,
) -> None:
    """`out`: for trajectories from the `first` on, fixed fields, texts, data of their rows from `first_row` on, and finals.

    What is not fixed stands behind its length. `fixed` and `num_steps` are of the trajectories to be written, the rest of all.
    """

def check_stream(
    data: Any, plan: tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes], /
) -> tuple[bytes, int, int, bytes, list[str], bytes, bytes] | None:
    """Ids of the trajectories, 16 bytes each, number of rows, newest policy version, the environments' ids, agents, the first
    row of each trajectory and the number of rows (int32), and where the values of every column and final begin (int64); None
    if the bytes are not surely a stream of the plan. `data.arrow.checked_streams` makes plans."""

def instruction_sets() -> tuple[str, ...]:
    """Those of this machine, best first."""

def use_instruction_set(name: str, /) -> None:
    """Use the kernels of another instruction set."""
