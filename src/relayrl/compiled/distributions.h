/* Action distributions of a tile, with rows along the vectors: column `a` of a table is at a * TILE_ROWS.
 *
 * Rows beyond the tile's own, up to a whole vector, hold numbers that are finite and mean nothing.
 */

static const float MASKED_LOGIT = -1e9f;

#define FOR_VECTORS(r, num_rows) for (int r = 0; r < (num_rows); r += LANES)

/* Columns [size, TILE_ROWS] of rows [num_rows, stride]; what is beyond the rows becomes 0. */
static void to_columns(float *columns, const float *rows, int64_t stride, int size, int num_rows) {
    for (int a = 0; a < size; a++) {
        float *column = columns + (int64_t)a * TILE_ROWS;
        for (int r = 0; r < num_rows; r++) column[r] = rows[r * stride + a];
        for (int r = num_rows; r < TILE_ROWS; r++) column[r] = 0.0f;
    }
}

/* One choice among `size`: logits become log-probabilities, and probabilities are written beside them. */
static void log_softmax(float *logits, float *probability, int size, int num_rows) {
    FOR_VECTORS(r, num_rows) {
        vec top = load(logits + r), sum = (vec){0};
        for (int a = 1; a < size; a++) top = larger(top, load(logits + a * TILE_ROWS + r));
        for (int a = 0; a < size; a++) {
            vec shifted = load(logits + a * TILE_ROWS + r) - top, e = vector_exp(shifted);
            store(logits + a * TILE_ROWS + r, shifted);
            store(probability + a * TILE_ROWS + r, e);
            sum += e;
        }
        vec log_sum = vector_log(sum), inverse = 1.0f / sum;
        for (int a = 0; a < size; a++) {
            store(logits + a * TILE_ROWS + r, load(logits + a * TILE_ROWS + r) - log_sum);
            store(probability + a * TILE_ROWS + r, load(probability + a * TILE_ROWS + r) * inverse);
        }
    }
}

static void forbid(float *logits, const uint8_t *mask, int size, int row) {
    for (int a = 0; a < size; a++) {
        if (!mask[a]) logits[a * TILE_ROWS + row] = MASKED_LOGIT;
    }
}
