/* C = A B for row-major B and C whose rows are whole vectors; A may lie either way.
 *
 * Blocks of BLOCK_ROWS × BLOCK_VECTORS results stay in registers while the depth is walked. Operands are small enough to
 * stay in the cache, so there is no blocking beyond that.
 */

typedef struct {
    const float *a;
    int64_t row_stride, depth_stride; /* a(i, p) = a[i * row_stride + p * depth_stride] */
} Left;

/* C [num_rows, width] = init + A B, where init is C itself, a row for all rows, a column for all columns, or 0. */
typedef enum { FROM_ZERO, FROM_ROW, FROM_COLUMN, FROM_TARGET } Beginning;

#define DEFINE_BLOCK(ROWS, VECTORS)                                                                                    \
    static void block_##ROWS##_##VECTORS(                                                                              \
        int64_t depth, Left left, const float *b, int64_t b_stride, float *c, int64_t c_stride, Beginning beginning,   \
        const float *init                                                                                              \
    ) {                                                                                                                \
        vec sum[ROWS][VECTORS];                                                                                        \
        _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) {                                                       \
            _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) {                                                \
                sum[i][j] = beginning == FROM_ROW      ? load(init + j * LANES)                                        \
                            : beginning == FROM_COLUMN ? splat(init[i])                                                \
                            : beginning == FROM_TARGET ? load(c + i * c_stride + j * LANES)                            \
                                                       : (vec){0};                                                     \
            }                                                                                                          \
        }                                                                                                              \
        for (int64_t p = 0; p < depth; p++) {                                                                          \
            const float *a = left.a + p * left.depth_stride;                                                           \
            const float *line = b + p * b_stride;                                                                      \
            vec right[VECTORS];                                                                                        \
            _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) right[j] = load(line + j * LANES);               \
            _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) {                                                   \
                vec factor = splat(a[i * left.row_stride]);                                                            \
                _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) sum[i][j] += factor * right[j];              \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) {                                                       \
            _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) store(c + i * c_stride + j * LANES, sum[i][j]);  \
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

typedef void Block(int64_t, Left, const float *, int64_t, float *, int64_t, Beginning, const float *);

/* Rows of the next block. Low blocks see to it that an even number of rows leaves no single ones, which waste the most. */
static int64_t block_rows(int64_t rows_left) {
    if (rows_left >= BLOCK_ROWS && rows_left != BLOCK_ROWS + 2) return BLOCK_ROWS;
    return rows_left >= LOW_BLOCK_ROWS ? LOW_BLOCK_ROWS : 1;
}

static void product(
    int64_t num_rows, int64_t width, int64_t depth, Left left, const float *b, int64_t b_stride, float *c,
    int64_t c_stride, Beginning beginning, const float *init
) {
    int64_t i = 0, n;
    for (; i < num_rows; i += n) {
        Left rows = {left.a + i * left.row_stride, left.row_stride, left.depth_stride};
        float *target = c + i * c_stride;
        n = block_rows(num_rows - i);
        Block *wide = n == BLOCK_ROWS       ? BLOCK_NAME(BLOCK_ROWS, BLOCK_VECTORS)
                      : n == LOW_BLOCK_ROWS ? BLOCK_NAME(LOW_BLOCK_ROWS, BLOCK_VECTORS)
                                            : BLOCK_NAME(1, BLOCK_VECTORS);
        Block *slim = n == BLOCK_ROWS       ? BLOCK_NAME(BLOCK_ROWS, 1)
                      : n == LOW_BLOCK_ROWS ? BLOCK_NAME(LOW_BLOCK_ROWS, 1)
                                            : block_1_1;
        const float *column = beginning == FROM_COLUMN ? init + i : NULL;
        int64_t j = 0;
        for (; j + BLOCK_VECTORS * LANES <= width; j += BLOCK_VECTORS * LANES) {
            wide(depth, rows, b + j, b_stride, target + j, c_stride, beginning, column ? column : init + j);
        }
        for (; j < width; j += LANES) {
            slim(depth, rows, b + j, b_stride, target + j, c_stride, beginning, column ? column : init + j);
        }
    }
}
