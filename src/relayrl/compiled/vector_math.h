/* Vectors of LANES floats, and the functions that the networks need of them. */
#if LANES >= 8
#include <immintrin.h>
#endif

typedef float vec __attribute__((vector_size(LANES * 4), may_alias, aligned(4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), may_alias, aligned(4)));

#define INLINE static inline __attribute__((always_inline))

/* Arithmetic with several callers that must agree to the last bit: where a compiler makes a copy for each, it may fuse products and
 * sums in one and not in the other. */
#if defined(__clang__)
#define ONE_COPY static __attribute__((noinline))
#else
#define ONE_COPY static __attribute__((noinline, noclone))
#endif

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec x) { *(vec *)p = x; }
INLINE vec splat(float x) { return x - (vec){0}; }
INLINE vec choose(ivec condition, vec yes, vec no) {
    return (vec)(((ivec)yes & condition) | ((ivec)no & ~condition));
}
/* Where one of them is not a number, the second. */
#if LANES == 16
INLINE vec vector_sqrt(vec x) { return (vec)_mm512_sqrt_ps((__m512)x); }
INLINE vec smaller(vec a, vec b) { return (vec)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE vec larger(vec a, vec b) { return (vec)_mm512_max_ps((__m512)a, (__m512)b); }
#elif LANES == 8
INLINE vec vector_sqrt(vec x) { return (vec)_mm256_sqrt_ps((__m256)x); }
INLINE vec smaller(vec a, vec b) { return (vec)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE vec larger(vec a, vec b) { return (vec)_mm256_max_ps((__m256)a, (__m256)b); }
#else
INLINE vec vector_sqrt(vec x) {
    for (int i = 0; i < LANES; i++) x[i] = sqrtf(x[i]);
    return x;
}
INLINE vec smaller(vec a, vec b) { return choose(a < b, a, b); }
INLINE vec larger(vec a, vec b) { return choose(a > b, a, b); }
#endif
INLINE vec magnitude(vec x) { return (vec)((ivec)x & 0x7fffffff); }

INLINE float total(vec x) {
    float sum = 0.0f;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}

/* The numbers, from `first` on, of the lanes that are not 0, behind a list with room for LANES more; gives its new length. */
INLINE int64_t append_lanes(int32_t *list, int64_t length, ivec lanes, int32_t first) {
#if LANES == 16
    const __mmask16 chosen = _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes);
    const ivec numbers = (ivec){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + first;
    _mm512_storeu_si512(list + length, _mm512_maskz_compress_epi32(chosen, (__m512i)numbers));
    return length + __builtin_popcount(chosen);
#else
    for (int i = 0; i < LANES; i++) {
        list[length] = first + i;
        length += lanes[i] != 0;
    }
    return length;
#endif
}

/* LANES × LANES numbers, rows into columns. Everything is read before anything is written: `to` may be `from`. */
#if defined(__clang__)
INLINE void transpose(const float *from, int64_t from_stride, float *to, int64_t to_stride) {
    vec row[LANES];
    for (int i = 0; i < LANES; i++) row[i] = load(from + i * from_stride);
    for (int j = 0; j < LANES; j++) {
        vec column;
        for (int i = 0; i < LANES; i++) column[i] = row[i][j];
        store(to + j * to_stride, column);
    }
}
#else
/* Blocks of 1, 2, 4 … numbers change places within pairs of rows. */
INLINE void transpose(const float *from, int64_t from_stride, float *to, int64_t to_stride) {
    vec row[LANES];
    _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++) row[i] = load(from + i * from_stride);
    _Pragma("GCC unroll 4") for (int size = 1; size < LANES; size *= 2) {
        ivec upper, lower;
        _Pragma("GCC unroll 16") for (int j = 0; j < LANES; j++) {
            upper[j] = j & size ? LANES + j - size : j;
            lower[j] = j & size ? LANES + j : j + size;
        }
        _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++) {
            if (i & size) continue;
            const vec first = row[i], second = row[i | size];
            row[i] = __builtin_shuffle(first, second, upper);
            row[i | size] = __builtin_shuffle(first, second, lower);
        }
    }
    _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++) store(to + i * to_stride, row[i]);
}
#endif

/* x P(x²) / Q(x²), a minimax fit over |x| ≤ 8.2, beyond which tanh is 1 in float32; relative error about 3e-7. */
INLINE vec vector_tanh(vec x) {
    const vec bound = splat(8.2f);
    vec c = larger(-bound, smaller(bound, x)); /* in this order what is not a number stays so */
    vec u = c * c;
    vec p = u * 1.4840511e-8f + 2.1637241e-5f;
    p = p * u + 3.5566844e-3f;
    p = p * u + 1.3432121e-1f;
    p = p * u + 1.0f;
    vec q = u * 8.3705851e-7f + 3.3864379e-4f;
    q = q * u + 2.6108291e-2f;
    q = q * u + 4.6765447e-1f;
    q = q * u + 1.0f;
    return c * p / q;
}

/* 2^n e^r with |r| ≤ ln 2 / 2 (Cephes' polynomial); 0 below −87, infinity above 88. */
INLINE vec vector_exp(vec x) {
    vec c = larger(smaller(x, splat(88.0f)), splat(-87.0f));
    vec n = c * 1.44269504088896341f + 12582912.0f; /* adding 1.5 · 2²³ rounds to an integer */
    ivec power = (ivec)n - 0x4b400000;
    n = n - 12582912.0f;
    vec r = c - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    vec y = p * (vec)((power + 127) << 23);
    y = choose(x < splat(-87.0f), splat(0.0f), y);
    y = choose(x > splat(88.0f), splat(INFINITY), y);
    return choose(x == x, y, x);
}

/* Of normal positive numbers: log(m 2^e) with m in [√½, √2) (Cephes' polynomial). */
INLINE vec vector_log(vec x) {
    ivec bits = (ivec)x;
    ivec e = ((bits - 0x3f3504f3) >> 23);
    vec m = (vec)(bits - (e << 23)) - 1.0f;
    vec n = __builtin_convertvector(e, vec);
    vec z = m * m;
    vec p = m * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    vec y = p * m * z + n * -2.12194440e-4f - 0.5f * z;
    return m + y + n * 0.693359375f;
}
