/* C = A B for row-major B and C whose rows are whole vectors; A may lie either way.
 *
 * Blocks of BLOCK_ROWS × BLOCK_VECTORS results stay in registers while the depth is walked. Operands are small enough to
 * stay in the cache, so there is no blocking beyond that.
 */

typedef struct {
    const float *a;
    int64_t row_stride, depth_stride; /* a(i, p) = a[i * row_stride + p * depth_stride] */
    const int32_t *rows;              /* which of them take part, in their order; NULL: the first ones */
    int skips_zeros;                  /* whether to skip depths that are 0 in all rows of a block */
} Left;

/* C [num_rows, width] = init + A B, where init is C itself, a row for all rows, or 0. */
typedef enum { FROM_ZERO, FROM_ROW, FROM_TARGET } Beginning;

#define DEFINE_BLOCK(ROWS, VECTORS)                                                                                    \
    static void block_##ROWS##_##VECTORS(                                                                              \
        int64_t first, const Left *left, int64_t depth, const int32_t *depths, const float *b, int64_t b_stride,       \
        float *c, int64_t c_stride, Beginning beginning, const float *init                                             \
    ) {                                                                                                                \
        const float *a[ROWS];                                                                                          \
        float *target[ROWS];                                                                                           \
        vec sum[ROWS][VECTORS];                                                                                        \
        _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) {                                                       \
            const int64_t row = left->rows ? left->rows[first + i] : first + i;                                        \
            a[i] = left->a + row * left->row_stride;                                                                   \
            target[i] = c + row * c_stride;                                                                            \
            _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) {                                                \
                sum[i][j] = beginning == FROM_ROW      ? load(init + j * LANES)                                        \
                            : beginning == FROM_TARGET ? load(target[i] + j * LANES)                                   \
                                                       : (vec){0};                                                     \
            }                                                                                                          \
        }                                                                                                              \
        for (int64_t n = 0; n < depth; n++) {                                                                          \
            const int64_t p = depths ? depths[n] : n, at = p * left->depth_stride;                                     \
            const float *line = b + p * b_stride;                                                                      \
            vec right[VECTORS];                                                                                        \
            _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) right[j] = load(line + j * LANES);               \
            _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) {                                                   \
                vec factor = splat(a[i][at]);                                                                          \
                _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) sum[i][j] += factor * right[j];              \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) {                                                       \
            _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) store(target[i] + j * LANES, sum[i][j]);         \
        }                                                                                                              \
    }

#define BLOCK_NAME(rows, vectors) BLOCK_NAME_(rows, vectors)
#define BLOCK_NAME_(rows, vectors) block_##rows##_##vectors
#define DEFINE_BLOCK_(rows, vectors) DEFINE_BLOCK(rows, vectors)

DEFINE_BLOCK_(BLOCK_ROWS, BLOCK_VECTORS)
DEFINE_BLOCK_(BLOCK_ROWS, 1)
DEFINE_BLOCK_(LOW_BLOCK_ROWS, BLOCK_VECTORS)
DEFINE_BLOCK_(LOW_BLOCK_ROWS, 1)
DEFINE_BLOCK_(1, BLOCK_VECTORS)
DEFINE_BLOCK(1, 1)
#if BLOCK_VECTORS > 2
#define HAS_PAIRS /* columns that are two vectors wide, which one at a time would leave too few sums to wait for */
DEFINE_BLOCK_(BLOCK_ROWS, 2)
DEFINE_BLOCK_(LOW_BLOCK_ROWS, 2)
DEFINE_BLOCK_(1, 2)
#endif

typedef void Block(
    int64_t, const Left *, int64_t, const int32_t *, const float *, int64_t, float *, int64_t, Beginning, const float *
);

/* Rows of the next block. Low blocks see to it that an even number of rows leaves no single ones, which waste the most. */
static int64_t block_rows(int64_t rows_left) {
    if (rows_left >= BLOCK_ROWS && rows_left != BLOCK_ROWS + 2) return BLOCK_ROWS;
    return rows_left >= LOW_BLOCK_ROWS ? LOW_BLOCK_ROWS : 1;
}

#define MAX_SKIPPED_DEPTH 2048                    /* numbers of a row among which to look for zeros */
#define MIN_SKIPPED_WIDTH (BLOCK_VECTORS * LANES) /* columns for which looking for zeros pays */

/* The depths that are not 0 in all of some rows; gives how many. Rows are whole vectors, with zeros behind the last depth. */
static int64_t find_depths(const Left *left, int64_t first, int64_t num_rows, int64_t depth, int32_t *depths) {
    int64_t count = 0;
    for (int64_t p = 0; p < depth; p += LANES) {
        ivec bits = {0};
        for (int64_t i = first; i < first + num_rows; i++) {
            bits |= (ivec)load(left->a + (left->rows ? left->rows[i] : i) * left->row_stride + p);
        }
        count = append_lanes(depths, count, bits << 1, (int32_t)p); /* without the sign: 0 may be negative */
    }
    return count;
}

/* Rows that do not take part stay as they are. */
static void product(
    int64_t num_rows, int64_t width, int64_t depth, Left left, const float *b, int64_t b_stride, float *c,
    int64_t c_stride, Beginning beginning, const float *init
) {
    int32_t found[MAX_SKIPPED_DEPTH + LANES], *depths = left.skips_zeros ? found : NULL;
    int64_t i = 0, n;
    for (; i < num_rows; i += n) {
        n = block_rows(num_rows - i);
        const int64_t num_depths = depths ? find_depths(&left, i, n, depth, depths) : depth;
        Block *wide = n == BLOCK_ROWS       ? BLOCK_NAME(BLOCK_ROWS, BLOCK_VECTORS)
                      : n == LOW_BLOCK_ROWS ? BLOCK_NAME(LOW_BLOCK_ROWS, BLOCK_VECTORS)
                                            : BLOCK_NAME(1, BLOCK_VECTORS);
        Block *slim = n == BLOCK_ROWS       ? BLOCK_NAME(BLOCK_ROWS, 1)
                      : n == LOW_BLOCK_ROWS ? BLOCK_NAME(LOW_BLOCK_ROWS, 1)
                                            : block_1_1;
        int64_t j = 0;
        for (; j + BLOCK_VECTORS * LANES <= width; j += BLOCK_VECTORS * LANES) {
            wide(i, &left, num_depths, depths, b + j, b_stride, c + j, c_stride, beginning, init + j);
        }
#ifdef HAS_PAIRS
        Block *pair = n == BLOCK_ROWS       ? BLOCK_NAME(BLOCK_ROWS, 2)
                      : n == LOW_BLOCK_ROWS ? BLOCK_NAME(LOW_BLOCK_ROWS, 2)
                                            : block_1_2;
        for (; j + 2 * LANES <= width; j += 2 * LANES) {
            pair(i, &left, num_depths, depths, b + j, b_stride, c + j, c_stride, beginning, init + j);
        }
#endif
        for (; j < width; j += LANES) {
            slim(i, &left, num_depths, depths, b + j, b_stride, c + j, c_stride, beginning, init + j);
        }
    }
}
