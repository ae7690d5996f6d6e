/* The arithmetic of CartPole, number for number as `envs.native.classic.cart_pole` has it in NumPy. */
#ifndef RELAYRL_CART_POLES_H
#define RELAYRL_CART_POLES_H

#include <math.h>
#include <stdint.h>

#include "numpy_rounding.h"

enum { LEVER, INERTIA, GRAVITY, STEP_S, PUSH_LEFT, PUSH_RIGHT, MAX_POSITION, MAX_ANGLE, NUM_CONSTANTS };

static inline void step_carts(
    int64_t B, float *motion, const int64_t *action, const float *sine, const float *cosine, const float *k, float *seen, uint8_t *terminated
) {
    float *x = motion, *speed = motion + B, *angle = motion + 2 * B, *spin = motion + 3 * B;
    for (int64_t b = 0; b < B; b++) {
        const float push = spin[b] * spin[b] * sine[b] * k[LEVER] + k[action[b] > 0 ? PUSH_RIGHT : PUSH_LEFT];
        const float lever = cosine[b] * k[LEVER], inertia = k[INERTIA] - lever * cosine[b];
        const float pole = (sine[b] * k[GRAVITY] - cosine[b] * push) / inertia;
        const float cart = push - pole * lever;
        x[b] += speed[b] * k[STEP_S];
        angle[b] += spin[b] * k[STEP_S];
        speed[b] += cart * k[STEP_S];
        spin[b] += pole * k[STEP_S];
        terminated[b] = fabsf(x[b]) > k[MAX_POSITION] || fabsf(angle[b]) > k[MAX_ANGLE];
    }
    for (int64_t b = 0; b < B; b++) {
        for (int i = 0; i < 4; i++) seen[4 * b + i] = motion[i * B + b];
    }
}

#endif
