/* The arithmetic of particle worlds, number for number as `envs.native.particles` has it in NumPy.
 *
 * Worlds are the last axis B of all arrays but those that agents see; every function takes the worlds [from, to).
 */
#ifndef RELAYRL_PARTICLES_H
#define RELAYRL_PARTICLES_H

#include <math.h>
#include <stdint.h>

#include "numpy_rounding.h"

#define NUM_MOVES 5
#define CHUNK 128 /* worlds whose numbers stay in the cache from the first pass to the last */

typedef struct {
    int64_t from, to;
} Range;

/* Forces [2, N, B] of actions [B, N, A] with the moves stay, left, right, down, up first, each between 0 and 1. */
static inline float clipped(float x) { return x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x; }

static inline void decode(int64_t N, int64_t B, int64_t A, const float *action, float acceleration, Range w, float *x, float *y) {
    for (int64_t b = w.from; b < w.to; b++) {
        for (int64_t n = 0; n < N; n++) {
            const float *own = action + (b * N + n) * A;
            x[n * B + b] = (clipped(own[2]) - clipped(own[1])) * acceleration;
            y[n * B + b] = (clipped(own[4]) - clipped(own[3])) * acceleration;
        }
    }
}

/* Where N agents may touch C = K - first of the K bodies whose distances [N, K, B] they know, and the softplus of their overlap. Of
 * those who are far from touching, it is one number: only for the others is softplus worked out. */
typedef struct {
    int64_t N, K, B, first;
    const float *reach;    /* [N, C] */
    const float *distance; /* [N, K, B] */
    float margin, bound;   /* overlaps count in margins; beyond `bound` of them, either way, all are alike */
    int64_t *start;        /* [N · C + 1] where each pair's worlds begin in `close` */
    int32_t *close;        /* [N · C · B] worlds in which a pair is within the bound, ascending */
} Contacts;

static inline float overlap_of(float reach, float distance, float margin) { return (reach - distance) / margin; }

/* −|overlap|, of which softplus takes the exponential: first that at the bound, then those of `close`. Gives how many. */
static inline int64_t find_close(const Contacts *c, float *exponent) {
    const int64_t C = c->K - c->first;
    int64_t count = 0;
    exponent[0] = -c->bound;
    for (int64_t i = 0; i < c->N * C; i++) {
        const float *d = c->distance + (i / C * c->K + c->first + i % C) * c->B;
        c->start[i] = count;
        for (int64_t from = 0; from < c->B; from += CHUNK) {
            const int64_t left = c->B - from < CHUNK ? c->B - from : CHUNK;
            float size[CHUNK];
            for (int64_t b = 0; b < left; b++) size[b] = fabsf(overlap_of(c->reach[i], d[from + b], c->margin));
            for (int64_t b = 0; b < left; b++) {
                if (size[b] >= c->bound) continue;
                c->close[count++] = (int32_t)(from + b);
                exponent[count] = -size[b];
            }
        }
    }
    c->start[c->N * C] = count;
    return 1 + count;
}

static inline float push_of(const Contacts *c, float reach, float distance, float soft, float factor, float tiny) {
    const float x = overlap_of(reach, distance, c->margin), overlap = x < 0.0f ? 0.0f : x;
    return (soft + overlap) * factor / (distance < tiny ? tiny : distance);
}

/* Total force [2, N, B] that pushes apart: offset · (soft + overlap) factor / distance, added up over the columns in their order.
 * `soft` is log(1 + exp) of the exponents that `find_close` gave. */
static inline void push_apart(const Contacts *c, const float *soft, const float *offset, float factor, float tiny, Range w, float *force) {
    const int64_t N = c->N, C = c->K - c->first, B = c->B;
    for (int64_t n = 0; n < N; n++) {
        float *x = force + n * B, *y = force + (N + n) * B;
        for (int64_t b = w.from; !C && b < w.to; b++) x[b] = y[b] = 0.0f;
        for (int64_t k = 0; k < C; k++) {
            const int64_t i = n * C + k, column = (n * c->K + c->first + k) * B;
            const float *by_x = offset + column, *by_y = by_x + N * c->K * B, *d = c->distance + column;
            const float reach = c->reach[i];
            int64_t at = c->start[i];
            for (int64_t from = w.from; from < w.to; from += CHUNK) {
                const int64_t left = w.to - from < CHUNK ? w.to - from : CHUNK;
                float push[CHUNK];
                for (int64_t b = 0; b < left; b++) push[b] = push_of(c, reach, d[from + b], soft[0], factor, tiny);
                for (; at < c->start[i + 1]; at++) {
                    const int64_t b = c->close[at] - from;
                    if (b >= left) break;
                    if (b >= 0) push[b] = push_of(c, reach, d[from + b], soft[1 + at], factor, tiny);
                }
                for (int64_t b = from; b < from + left; b++) {
                    x[b] = k ? x[b] + by_x[b] * push[b - from] : by_x[b] * push[b - from];
                    y[b] = k ? y[b] + by_y[b] * push[b - from] : by_y[b] * push[b - from];
                }
            }
        }
    }
}

/* x += v dt and v ← keep v + F dt of N bodies from `first` on, in each of the two axes; F is `force` [2, N, B] and, where there is
 * one, `push`. */
static inline void move(
    int64_t N, int64_t B, int64_t E, int64_t A, int64_t first, float *position, float *velocity, const float *force, const float *push, float dt,
    float keep, Range w
) {
    for (int64_t i = 0; i < 2 * N; i++) {
        const int64_t axis = i / N, n = first + i % N;
        float *x = position + (axis * E + n) * B, *v = velocity + (axis * A + n) * B;
        const float *own = force + i * B, *other = push ? push + i * B : NULL;
        for (int64_t b = w.from; b < w.to; b++) {
            const float total = other ? own[b] + other[b] : own[b];
            x[b] += v[b] * dt;
            v[b] = v[b] * keep + total * dt;
        }
    }
}

/* `offset` [2, N, K, B] from agent first + n to the bodies seen[n, k], and `distance` [N, K, B]. */
static inline void measure(
    int64_t N, int64_t K, int64_t B, int64_t E, int64_t first, const float *position, const int64_t *seen, Range w, float *offset, float *distance
) {
    for (int64_t n = 0; n < N; n++) {
        const float *own = position + (first + n) * B;
        for (int64_t k = n * K; k < (n + 1) * K; k++) {
            const float *other = position + seen[k] * B;
            float *x = offset + k * B, *y = offset + (N * K + k) * B, *d = distance + k * B;
            for (int64_t b = w.from; b < w.to; b++) {
                x[b] = other[b] - own[b];
                y[b] = other[E * B + b] - own[E * B + b];
                d[b] = sqrtf(x[b] * x[b] + y[b] * y[b]);
            }
        }
    }
}

#endif
