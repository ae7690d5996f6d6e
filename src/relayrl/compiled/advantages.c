/* Generalised advantage estimates of [T, L] columns on which every lane acted. */
#include "kernels.h"

void generalised_advantages(
    int64_t T, int64_t L, const float *reward, const float *value, const float *next_value, const uint8_t *terminated,
    const uint8_t *truncated, double gamma, double lam, float *advantage
) {
    const float discount = (float)gamma, decay = (float)(gamma * lam);
    for (int64_t t = T - 1; t >= 0; t--) {
        const int64_t row = t * L;
        for (int64_t i = row; i < row + L; i++) {
            float delta = reward[i] + (terminated[i] ? 0.0f : discount * next_value[i]) - value[i];
            float ahead = t + 1 < T ? advantage[i + L] : 0.0f;
            advantage[i] = delta + (terminated[i] | truncated[i] ? 0.0f : decay * ahead);
        }
    }
}
