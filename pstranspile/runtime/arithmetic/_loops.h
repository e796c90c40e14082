/* The loops of the module pstranspile.runtime.arithmetic._loops, over float32 arrays.

Every result has the bits that numpy's functions give in the order that the comments state: no multiplication is
contracted with an addition, and no sum is reordered. The build passes -ffp-contract=off for that. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __linux__
#include <features.h>
#endif

/* Code for several generations of processors, the best of which is chosen when the module is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_ALL_PROCESSORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_ALL_PROCESSORS
#endif

#ifdef __GNUC__
#define ALWAYS_INLINE __attribute__((always_inline)) inline
#else
#define ALWAYS_INLINE inline
#endif

/* Elements of different places don't depend on each other, though arrays may be the same. */
#if defined(__GNUC__) && !defined(__clang__)
#define INDEPENDENT _Pragma("GCC ivdep")
#elif defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT
#endif

/* The iterations may be combined in any order. */
#ifdef _MSC_VER
#define REDUCES(how)
#else
#define TEXT(words) #words
#define REDUCES(how) _Pragma(TEXT(omp simd reduction(how)))
#endif

#define NARROW 16  /* rows up to here are too short for vectors */

typedef ptrdiff_t Size;

/* A table: its first row, and the elements from the start of one row to the start of the next. */
typedef struct {
    float *first;
    Size stride;
} Table;

ALWAYS_INLINE static float *row_of(Table table, int64_t row) { return table.first + row * table.stride; }

/* new = p - rate * g */
FOR_ALL_PROCESSORS static void sgd(Size n, const float *p, const float *g, float *new, float rate) {
    INDEPENDENT
    for (Size i = 0; i < n; i++) new[i] = p[i] - rate * g[i];
}

/* v = v * mu + g; new = p - rate * v */
FOR_ALL_PROCESSORS static void momentum(Size n, const float *p, const float *g, float *v, float *new, float mu,
                                        float rate) {
    INDEPENDENT
    for (Size i = 0; i < n; i++) {
        float velocity = v[i] * mu + g[i];
        v[i] = velocity;
        new[i] = p[i] - rate * velocity;
    }
}

/* v = v * mu + g; new = p - rate * (g + mu * v) */
FOR_ALL_PROCESSORS static void nesterov(Size n, const float *p, const float *g, float *v, float *new, float mu,
                                        float rate) {
    INDEPENDENT
    for (Size i = 0; i < n; i++) {
        float velocity = v[i] * mu + g[i];
        v[i] = velocity;
        new[i] = p[i] - rate * (g[i] + mu * velocity);
    }
}

/* m = m * kept1 + new1 * g; v = v * kept2 + (g * new2) * g; new = p - m / (sqrt(v) + epsilon) * rate */
ALWAYS_INLINE static void adam_step(Size n, const float *p, const float *g, float *m, float *v, float *new,
                                    const float *scales) {
    const float kept1 = scales[0], new1 = scales[1], kept2 = scales[2], new2 = scales[3], epsilon = scales[4],
                rate = scales[5];
    INDEPENDENT
    for (Size i = 0; i < n; i++) {
        float moment1 = m[i] * kept1 + new1 * g[i];
        float moment2 = v[i] * kept2 + (g[i] * new2) * g[i];
        m[i] = moment1;
        v[i] = moment2;
        new[i] = p[i] - moment1 / (sqrtf(moment2) + epsilon) * rate;
    }
}

FOR_ALL_PROCESSORS static void adam(Size n, const float *p, const float *g, float *m, float *v, float *new,
                                    const float *scales) {
    adam_step(n, p, g, m, v, new, scales);
}

/* m = m + g * g; p = p - rate * g / (sqrt(m) + epsilon) */
FOR_ALL_PROCESSORS static void adagrad(Size n, float *p, const float *g, float *m, float rate, float epsilon) {
    INDEPENDENT
    for (Size i = 0; i < n; i++) {
        float moment = m[i] + g[i] * g[i];
        m[i] = moment;
        p[i] = p[i] - rate * g[i] / (sqrtf(moment) + epsilon);
    }
}

/* The gradients of activations from those of their results, and from these. */

/* out = dy * (1 - y * y) */
FOR_ALL_PROCESSORS static void tanh_grad(Size n, const float *y, const float *dy, float *out) {
    INDEPENDENT
    for (Size i = 0; i < n; i++) out[i] = dy[i] * (1.0f - y[i] * y[i]);
}

/* out = dy * y * (1 - y) */
FOR_ALL_PROCESSORS static void sigmoid_grad(Size n, const float *y, const float *dy, float *out) {
    INDEPENDENT
    for (Size i = 0; i < n; i++) out[i] = dy[i] * y[i] * (1.0f - y[i]);
}

/* out = dy * (1 where y > 0, 0 elsewhere) */
FOR_ALL_PROCESSORS static void relu_grad(Size n, const float *y, const float *dy, float *out) {
    INDEPENDENT
    for (Size i = 0; i < n; i++) out[i] = dy[i] * (y[i] > 0.0f ? 1.0f : 0.0f);
}

/* out = the error function of x, by series of three terms around `points` points that are 1 / steps apart: table[n, k]
   is the coefficient of the power n around k / steps. Beyond the last point it is 1. */
FOR_ALL_PROCESSORS static void error_function(Size n, const float *x, float *out, const double *table, Size points,
                                              double steps) {
    const double end = (double)(points - 1) / steps;
    const double *slope = table + points, *bend = slope + points;
    INDEPENDENT
    for (Size i = 0; i < n; i++) {
        double rest = fabs((double)x[i]);
        rest = (rest > end ? end : rest) * steps;
        double nearest = rint(rest);
        rest = (rest - nearest) / steps;
        int32_t at = (int32_t)(nearest > 0.0 ? nearest : 0.0);
        double sum = (bend[at] * rest + slope[at]) * rest + table[at];
        out[i] = (float)copysign(sum, (double)x[i]);
    }
}

/* out = max(x - the largest element of the row, least), in rows of `width`; a NaN makes its row NaN.
   Which zero is the largest of several of both signs is not determined. */
FOR_ALL_PROCESSORS static void below_largest(Size rows, Size width, const float *x, float *out, float least) {
    for (Size row = 0; row < rows; row++, x += width, out += width) {
        float largest = -INFINITY;
        int unordered = 0;
        if (width < NARROW) {
            for (Size i = 0; i < width; i++) {
                largest = x[i] > largest ? x[i] : largest;
                unordered |= x[i] != x[i];
            }
        } else {
            REDUCES(max : largest)
            for (Size i = 0; i < width; i++) largest = x[i] > largest ? x[i] : largest;
            REDUCES(| : unordered)
            for (Size i = 0; i < width; i++) unordered |= x[i] != x[i];
        }
        if (unordered) largest = NAN;
        INDEPENDENT
        for (Size i = 0; i < width; i++) {
            float below = x[i] - largest;
            out[i] = below < least ? least : below;
        }
    }
}

/* The sum in the order of numpy: of up to 7 elements one by one, of up to 128 in 8 sums, of more in two halves. */
ALWAYS_INLINE static float sum_of_block(Size n, const float *x) {
    Size at = 0;
    float sum;
    if (n < 8) {
        sum = 0.0f;
    } else {
        float sums[8];
        memcpy(sums, x, sizeof sums);
        for (at = 8; at < n - n % 8; at += 8) {
            for (int lane = 0; lane < 8; lane++) sums[lane] += x[at + lane];
        }
        sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
    for (; at < n; at++) sum += x[at];
    return sum;
}

FOR_ALL_PROCESSORS static float sum_of_halves(Size n, const float *x) {
    if (n <= 128) return sum_of_block(n, x);
    Size half = n / 2;
    half -= half % 8;
    float first = sum_of_halves(half, x);
    return first + sum_of_halves(n - half, x + half);
}

ALWAYS_INLINE static float sum_of_row(Size n, const float *x) {
    return n <= 128 ? sum_of_block(n, x) : sum_of_halves(n, x);
}

/* sums = the rows of x of `width`, added in order */
FOR_ALL_PROCESSORS static void sum_rows(Size rows, Size width, const float *x, float *sums) {
    memcpy(sums, x, width * sizeof(float));
    for (Size row = 1; row < rows; row++) {
        x += width;
        INDEPENDENT
        for (Size i = 0; i < width; i++) sums[i] = sums[i] + x[i];
    }
}

/* sums[row] = the sum of the row of x; x = x / sums[row], in rows of `width` */
FOR_ALL_PROCESSORS static void shares(Size rows, Size width, float *x, float *sums) {
    for (Size row = 0; row < rows; row++, x += width) {
        float sum = sums[row] = sum_of_row(width, x);
        INDEPENDENT
        for (Size i = 0; i < width; i++) x[i] = x[i] / sum;
    }
}

/* out = -x, limited to -limit and limit; NaN stays */
FOR_ALL_PROCESSORS static void negative_within(Size n, const float *x, float *out, float limit) {
    INDEPENDENT
    for (Size i = 0; i < n; i++) {
        const float from = x[i] < -limit ? -limit : x[i];
        out[i] = -(from > limit ? limit : from);
    }
}

/* out = (dy - the sum of dy * y over the row) * y, in rows of `width` */
FOR_ALL_PROCESSORS static void softmax_grad(Size rows, Size width, const float *y, const float *dy, float *out) {
    for (Size row = 0; row < rows; row++, y += width, dy += width, out += width) {
        INDEPENDENT
        for (Size i = 0; i < width; i++) out[i] = dy[i] * y[i];
        float sum = sum_of_row(width, out);
        INDEPENDENT
        for (Size i = 0; i < width; i++) out[i] = (dy[i] - sum) * y[i];
    }
}

/* Batch normalisation, over arrays [images, channels, elements] with a value for each channel. `mean` is that of the
   batch, `inverse` the inverse of the root of its variance. */
typedef struct {
    Size images, channels, elements;
} Dims;

/* out = x * scale + bias */
FOR_ALL_PROCESSORS static void scale_channels(Dims d, const float *x, const float *scale, const float *bias,
                                              float *out) {
    for (Size at = 0; at < d.images * d.channels; at++, x += d.elements, out += d.elements) {
        const float a = scale[at % d.channels], b = bias[at % d.channels];
        INDEPENDENT
        for (Size i = 0; i < d.elements; i++) out[i] = x[i] * a + b;
    }
}

/* out = (x - mean) * (x - mean) */
FOR_ALL_PROCESSORS static void squares(Dims d, const float *x, const float *mean, float *out) {
    for (Size at = 0; at < d.images * d.channels; at++, x += d.elements, out += d.elements) {
        const float m = mean[at % d.channels];
        INDEPENDENT
        for (Size i = 0; i < d.elements; i++) out[i] = (x[i] - m) * (x[i] - m);
    }
}

/* out = (x - mean) * inverse * dy */
FOR_ALL_PROCESSORS static void norm_products(Dims d, const float *x, const float *dy, const float *mean,
                                             const float *inverse, float *out) {
    for (Size at = 0; at < d.images * d.channels; at++, x += d.elements, dy += d.elements, out += d.elements) {
        const float m = mean[at % d.channels], v = inverse[at % d.channels];
        INDEPENDENT
        for (Size i = 0; i < d.elements; i++) out[i] = (x[i] - m) * v * dy[i];
    }
}

/* out = (dy * images * elements - bias - (x - mean) * scale * inverse) * factor, with the gradients of bias and scale */
FOR_ALL_PROCESSORS static void norm_grad(Dims d, const float *x, const float *dy, const float *const *of_channels,
                                         float *out) {
    const float images = (float)d.images, elements = (float)d.elements;
    for (Size at = 0; at < d.images * d.channels; at++, x += d.elements, dy += d.elements, out += d.elements) {
        const Size channel = at % d.channels;
        const float m = of_channels[0][channel], v = of_channels[1][channel], bias = of_channels[2][channel],
                    scale = of_channels[3][channel], factor = of_channels[4][channel];
        INDEPENDENT
        for (Size i = 0; i < d.elements; i++) {
            out[i] = (dy[i] * images * elements - bias - (x[i] - m) * scale * v) * factor;
        }
    }
}

/* The windows of a convolution over `images` of `channels` of height times width. Their elements are rows times columns,
   and they stand at down times right places. Steps between places, between elements of a window, and the padding before
   the first row and column come in pairs: along the height, along the width. */
typedef struct {
    int64_t images, channels, height, width, rows, columns, down, right, step[2], spread[2], padding[2];
} Windows;

/* From which place on, and up to which, an element of a window lies within the image. */
static inline void places(int64_t element, int64_t length, int64_t count, int64_t step, int64_t *first, int64_t *end) {
    const int64_t last = length - 1 - element;
    *first = element >= 0 ? 0 : (-element + step - 1) / step;
    *end = last < 0 ? 0 : last / step + 1;
    if (*end > count) *end = count;
    if (*first > *end) *first = *end;
}

/* windows[image, channel, row, column, place] = the element of x, 0 outside of it */
FOR_ALL_PROCESSORS static void unfold(const Windows *w, const float *x, float *windows) {
    for (int64_t image = 0; image < w->images * w->channels; image++, x += w->height * w->width) {
        for (int64_t row = 0; row < w->rows; row++) {
            int64_t top, bottom, left, right;
            const int64_t y = row * w->spread[0] - w->padding[0];
            places(y, w->height, w->down, w->step[0], &top, &bottom);
            for (int64_t column = 0; column < w->columns; column++, windows += w->down * w->right) {
                const int64_t at = column * w->spread[1] - w->padding[1];
                places(at, w->width, w->right, w->step[1], &left, &right);
                for (int64_t down = 0; down < w->down; down++) {
                    float *to = windows + down * w->right;
                    if (down < top || down >= bottom) {
                        memset(to, 0, w->right * sizeof *to);
                        continue;
                    }
                    const float *from = x + (down * w->step[0] + y) * w->width + at;
                    for (int64_t i = 0; i < left; i++) to[i] = 0.0f;
                    if (w->step[1] == 1) {
                        memcpy(to + left, from + left, (right - left) * sizeof *to);
                    } else {
                        for (int64_t i = left; i < right; i++) to[i] = from[i * w->step[1]];
                    }
                    for (int64_t i = right; i < w->right; i++) to[i] = 0.0f;
                }
            }
        }
    }
}

/* x[image, channel, ...] = the sum of all elements of windows that are there, element by element of a window */
FOR_ALL_PROCESSORS static void fold(const Windows *w, const float *windows, float *x) {
    memset(x, 0, w->images * w->channels * w->height * w->width * sizeof *x);
    for (int64_t image = 0; image < w->images * w->channels; image++, x += w->height * w->width) {
        for (int64_t row = 0; row < w->rows; row++) {
            int64_t top, bottom, left, right;
            const int64_t y = row * w->spread[0] - w->padding[0];
            places(y, w->height, w->down, w->step[0], &top, &bottom);
            for (int64_t column = 0; column < w->columns; column++, windows += w->down * w->right) {
                const int64_t at = column * w->spread[1] - w->padding[1];
                places(at, w->width, w->right, w->step[1], &left, &right);
                for (int64_t down = top; down < bottom; down++) {
                    float *to = x + (down * w->step[0] + y) * w->width + at;
                    const float *from = windows + down * w->right;
                    if (w->step[1] == 1) {
                        INDEPENDENT
                        for (int64_t i = left; i < right; i++) to[i] += from[i];
                    } else {
                        for (int64_t i = left; i < right; i++) to[i * w->step[1]] += from[i];
                    }
                }
            }
        }
    }
}

/* target[rows[i]] += value[i] for each i in order, in rows of `width` */
FOR_ALL_PROCESSORS static void add_rows(Size count, Size width, Table target, const int64_t *rows,
                                        const float *value) {
    for (Size at = 0; at < count; at++, value += width) {
        float *here = row_of(target, rows[at]);
        INDEPENDENT
        for (Size i = 0; i < width; i++) here[i] += value[i];
    }
}

/* Updates of single rows of tables by sparse gradients, which may have a row several times: its values are added in
   order, and the row is updated once. */

#define DIGIT 8  /* the bits by which rows are sorted at a time */

ALWAYS_INLINE static int digit_of(int64_t row, int shift) {
    return (int)((((uint64_t)row ^ ((uint64_t)1 << 63)) >> shift) & ((1 << DIGIT) - 1)); /* negative numbers first */
}

/* The indices of the rows in ascending order of the rows; ties keep their order. `order` and `spare` have room for
   `count` indices each, and one of them is the result. */
static const uint32_t *ascending(Size count, const int64_t *rows, uint32_t *order, uint32_t *spare) {
    if (count <= NARROW) {
        for (Size at = 0; at < count; at++) {
            Size place = at;
            for (; place && rows[order[place - 1]] > rows[at]; place--) order[place] = order[place - 1];
            order[place] = (uint32_t)at;
        }
        return order;
    }
    uint64_t varying = 0;
    int ascends = 1;
    for (Size at = 0; at < count; at++) {
        order[at] = (uint32_t)at;
        varying |= (uint64_t)rows[at] ^ (uint64_t)rows[0];
        ascends &= !at || rows[at - 1] <= rows[at];
    }
    if (ascends) return order;
    for (int shift = 0; shift < 64; shift += DIGIT) {
        if (!((varying >> shift) & ((1 << DIGIT) - 1))) continue;
        Size starts[1 << DIGIT] = {0}, start = 0;
        for (Size at = 0; at < count; at++) starts[digit_of(rows[at], shift)]++;
        for (int digit = 0; digit < 1 << DIGIT; digit++) {
            Size here = starts[digit];
            starts[digit] = start;
            start += here;
        }
        for (Size at = 0; at < count; at++) {
            uint32_t index = order[at];
            spare[starts[digit_of(rows[index], shift)]++] = index;
        }
        uint32_t *sorted = spare;
        spare = order;
        order = sorted;
    }
    return order;
}

/* The different rows in ascending order, and for each the sum of its values in their order. Gives their number, and
   writes nothing if all differ. `order` and `spare` have room for the index of each row. */
FOR_ALL_PROCESSORS static Size merge_rows(Size count, Size width, const int64_t *rows, Table value, uint32_t *order,
                                          uint32_t *spare, int64_t *merged, float *sums) {
    const uint32_t *sorted = ascending(count, rows, order, spare);
    Size different = count > 0;
    for (Size at = 1; at < count; at++) different += rows[sorted[at]] != rows[sorted[at - 1]];
    if (different == count) return count;
    float *sum = sums;
    for (Size at = 0; at < count; at++) {
        const float *from = row_of(value, sorted[at]);
        if (at && rows[sorted[at]] == rows[sorted[at - 1]]) {
            INDEPENDENT
            for (Size i = 0; i < width; i++) sum[i] += from[i];
        } else {
            sum = at ? sum + width : sum;
            *merged++ = rows[sorted[at]];
            memcpy(sum, from, width * sizeof *sum);
        }
    }
    return different;
}

/* The different rows of parts in ascending order, and for each the sum that dense tables of the parts would have: 0, and
   for each part the sum of its values of the row in order, from 0 on. The indices of a part end at `ends`. Gives the
   number of different rows. `order` and `spare` have room for the index of each row, and `of_part` for one row. */
FOR_ALL_PROCESSORS static Size sum_tables(Size count, Size width, const int64_t *rows, const Table *values,
                                          const Size *ends, uint32_t *order, uint32_t *spare, float *of_part,
                                          int64_t *merged, float *sums) {
    const uint32_t *sorted = ascending(count, rows, order, spare);
    Size different = 0;
    for (Size at = 0; at < count; different++) {
        float *sum = sums + different * width;
        Size part = 0;
        memset(sum, 0, width * sizeof *sum);
        merged[different] = rows[sorted[at]];
        while (at < count && rows[sorted[at]] == merged[different]) {
            while ((Size)sorted[at] >= ends[part]) part++;
            const Size start = part ? ends[part - 1] : 0;
            memset(of_part, 0, width * sizeof *of_part);
            do {
                const float *from = row_of(values[part], sorted[at] - start);
                INDEPENDENT
                for (Size i = 0; i < width; i++) of_part[i] = of_part[i] + from[i];
                at++;
            } while (at < count && rows[sorted[at]] == merged[different] && (Size)sorted[at] < ends[part]);
            INDEPENDENT
            for (Size i = 0; i < width; i++) sum[i] = sum[i] + of_part[i];
        }
    }
    return different;
}

#ifdef __GNUC__
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)0)
#endif

#define AHEAD 16  /* items that are fetched before they are needed */

/* Fetches a row of a table, which is a cache line or a few. */
ALWAYS_INLINE static void fetch_row(const float *row, Size width) {
    for (Size i = 0; i < width; i += 16) PREFETCH(row + i);
}

/* How far an update of tables by a sparse gradient reaches. A row that occurs several times is updated once, by the sum
   of its values in order, but for EACH. */
enum {
    EACH,            /* each occurrence of a row updates it, in order */
    GIVEN,           /* the rows that the gradient has */
    GIVEN_FROM_ZERO, /* the same; sums begin with 0, as those of a dense gradient do: -0 becomes 0 */
    ALL,             /* every row, by sums that begin with 0 */
    ALL_APART,       /* every row; those that the gradient lacks by a step without a gradient */
    REACHES
};

enum { PRESENT, ZERO, LACKING }; /* the gradient of a step: that of a row, zeros, none */

#define MOST_TABLES 4
#define MOST_SCALES 8

/* An update of tables, the parameter first: the rows of the gradient and their values, the indices of the rows in
   ascending order of these, or of their ids (for EACH: in an order that keeps that of equal rows, or NULL), room for the sum of a row, and the numbers of the optimizer. */
typedef struct {
    Size count, width, height;
    int reach;
    const int64_t *rows;
    Table value, tables[MOST_TABLES];
    const uint32_t *order;
    float *sum, scales[MOST_SCALES];
} Update;

/* A step on n elements of every table; the gradient of an element is g[i] if `kind` is PRESENT. */
typedef void Step(Size n, float *const *tables, const float *g, int kind, const float *scales);

/* The gradient of the row at `*at` of the order, and sets `*at` to the place of the next one. */
ALWAYS_INLINE static const float *gradient_of_row(const Update *u, Size *at) {
    const int64_t row = u->rows[u->order[*at]];
    const float *gradient = row_of(u->value, u->order[(*at)++]);
    const int from_zero = u->reach == GIVEN_FROM_ZERO || u->reach == ALL;
    const int again = *at < u->count && u->rows[u->order[*at]] == row;
    if (!again && !from_zero) return gradient;
    if (from_zero) {
        INDEPENDENT
        for (Size i = 0; i < u->width; i++) u->sum[i] = 0.0f + gradient[i];
    } else {
        memcpy(u->sum, gradient, u->width * sizeof *u->sum);
    }
    for (; *at < u->count && u->rows[u->order[*at]] == row; ++*at) {
        const float *more = row_of(u->value, u->order[*at]);
        INDEPENDENT
        for (Size i = 0; i < u->width; i++) u->sum[i] += more[i];
    }
    return u->sum;
}

/* Steps on the rows from `start` up to `stop`, which the gradient lacks. */
ALWAYS_INLINE static void update_lacking(const Update *u, int tables, Step *step, int64_t start, int64_t stop) {
    float *here[MOST_TABLES];
    int dense = 1;
    for (int table = 0; table < tables; table++) dense &= u->tables[table].stride == u->width;
    const Size rows = dense ? stop - start : 1;
    for (int64_t row = start; row < stop; row += rows) {
        for (int table = 0; table < tables; table++) here[table] = row_of(u->tables[table], row);
        if (u->reach == ALL) step(rows * u->width, here, NULL, ZERO, u->scales);
        else step(rows * u->width, here, NULL, LACKING, u->scales);
    }
}

ALWAYS_INLINE static void update_each(const Update *u, int tables, Step *step) {
    float *here[MOST_TABLES];
    if (!u->count && u->reach != ALL_APART) return;
    if (u->reach == EACH) {
        for (Size at = 0; at < u->count; at++) {
            const Size index = u->order ? u->order[at] : at;
            for (int table = 0; table < tables; table++) {
                if (at + AHEAD < u->count)
                    fetch_row(row_of(u->tables[table], u->rows[u->order ? u->order[at + AHEAD] : at + AHEAD]), u->width);
                here[table] = row_of(u->tables[table], u->rows[index]);
            }
            step(u->width, here, row_of(u->value, index), PRESENT, u->scales);
        }
        return;
    }
    const int all = u->reach >= ALL;
    int64_t next = 0;
    for (Size at = 0; at < u->count;) {
        const int64_t row = u->rows[u->order[at]];
        if (all) update_lacking(u, tables, step, next, row);
        for (int table = 0; table < tables; table++) {
            if (at + AHEAD / 2 < u->count)
                fetch_row(row_of(u->tables[table], u->rows[u->order[at + AHEAD / 2]]), u->width);
            here[table] = row_of(u->tables[table], row);
        }
        step(u->width, here, gradient_of_row(u, &at), PRESENT, u->scales);
        next = row + 1;
    }
    if (all) update_lacking(u, tables, step, next, u->height);
}

/* p = p + g * rate, with the negative rate */
ALWAYS_INLINE static void sgd_of_row(Size n, float *const *tables, const float *g, int kind, const float *scales) {
    float *p = tables[0];
    const float rate = scales[0];
    INDEPENDENT
    for (Size i = 0; i < n; i++) p[i] = p[i] + (kind == PRESENT ? g[i] : 0.0f) * rate;
}

FOR_ALL_PROCESSORS static void sgd_rows(const Update *u) { update_each(u, 1, sgd_of_row); }

/* Of momentum, with a velocity. */
ALWAYS_INLINE static void momentum_of_row(Size n, float *const *tables, const float *g, int kind,
                                          const float *scales) {
    float *p = tables[0], *v = tables[1];
    const float mu = scales[0], rate = scales[1];
    INDEPENDENT
    for (Size i = 0; i < n; i++) {
        float velocity = v[i] * mu + (kind == PRESENT ? g[i] : 0.0f);
        v[i] = velocity;
        p[i] = p[i] - rate * velocity;
    }
}

FOR_ALL_PROCESSORS static void momentum_rows(const Update *u) { update_each(u, 2, momentum_of_row); }

ALWAYS_INLINE static void nesterov_of_row(Size n, float *const *tables, const float *g, int kind,
                                          const float *scales) {
    float *p = tables[0], *v = tables[1];
    const float mu = scales[0], rate = scales[1];
    INDEPENDENT
    for (Size i = 0; i < n; i++) {
        float gradient = kind == PRESENT ? g[i] : 0.0f, velocity = v[i] * mu + gradient;
        v[i] = velocity;
        p[i] = p[i] - rate * (gradient + mu * velocity);
    }
}

FOR_ALL_PROCESSORS static void nesterov_rows(const Update *u) { update_each(u, 2, nesterov_of_row); }

ALWAYS_INLINE static void adagrad_of_row(Size n, float *const *tables, const float *g, int kind,
                                         const float *scales) {
    float *p = tables[0], *m = tables[1];
    const float rate = scales[0], epsilon = scales[1];
    INDEPENDENT
    for (Size i = 0; i < n; i++) {
        float gradient = kind == PRESENT ? g[i] : 0.0f, moment = m[i] + gradient * gradient;
        m[i] = moment;
        p[i] = p[i] - rate * gradient / (sqrtf(moment) + epsilon);
    }
}

FOR_ALL_PROCESSORS static void adagrad_rows(const Update *u) { update_each(u, 2, adagrad_of_row); }

/* Without a gradient: m = m * kept1; v = v * kept2; p = p - m / (sqrt(v) + other epsilon) * rate. The other epsilon is
   the last number. */
ALWAYS_INLINE static void adam_of_row(Size n, float *const *tables, const float *g, int kind, const float *scales) {
    float *p = tables[0], *m = tables[1], *v = tables[2];
    if (kind == PRESENT) {
        adam_step(n, p, g, m, v, p, scales);
        return;
    }
    const float kept1 = scales[0], new1 = scales[1], kept2 = scales[2], new2 = scales[3], rate = scales[5],
                epsilon = kind == ZERO ? scales[4] : scales[6];
    INDEPENDENT
    for (Size i = 0; i < n; i++) {
        float moment1 = m[i] * kept1, moment2 = v[i] * kept2;
        if (kind == ZERO) {
            moment1 = moment1 + new1 * 0.0f;
            moment2 = moment2 + (0.0f * new2) * 0.0f;
        }
        m[i] = moment1;
        v[i] = moment2;
        p[i] = p[i] - moment1 / (sqrtf(moment2) + epsilon) * rate;
    }
}

FOR_ALL_PROCESSORS static void adam_rows(const Update *u) { update_each(u, 3, adam_of_row); }

/* s = s * rho + (new * g) * g; a = a * rho + new * g, if the mean a is taken off; spread = s, or s - a * a.
   m = m * mu + (rate * g) / sqrt(spread + epsilon); p = p - m, or
   m = m * mu + g / (sqrt(spread) + epsilon); p = p - rate * m */
ALWAYS_INLINE static void rmsprop_of_elements(Size n, float *const *tables, const float *g, int kind,
                                              const float *scales, int centered, int of_root) {
    float *p = tables[0], *m = tables[1], *s = tables[2], *a = tables[3];
    const float rho = scales[0], new = scales[1], epsilon = scales[2], mu = scales[3], rate = scales[4];
    INDEPENDENT
    for (Size i = 0; i < n; i++) {
        float gradient = kind == PRESENT ? g[i] : 0.0f, square = s[i] * rho + (new * gradient) * gradient;
        float spread = square;
        s[i] = square;
        if (centered) {
            float mean = a[i] * rho + new * gradient;
            a[i] = mean;
            spread = square - mean * mean;
        }
        if (of_root) {
            float moment = m[i] * mu + gradient / (sqrtf(spread) + epsilon);
            m[i] = moment;
            p[i] = p[i] - rate * moment;
        } else {
            float moment = m[i] * mu + rate * gradient / sqrtf(spread + epsilon);
            m[i] = moment;
            p[i] = p[i] - moment;
        }
    }
}

#define RMSPROP(name, count, centered, of_root)                                                                    \
    ALWAYS_INLINE static void name##_of_row(Size n, float *const *tables, const float *g, int kind,                \
                                            const float *scales) {                                                 \
        rmsprop_of_elements(n, tables, g, kind, scales, centered, of_root);                                        \
    }                                                                                                              \
    FOR_ALL_PROCESSORS static void name##_rows(const Update *u) { update_each(u, count, name##_of_row); }

RMSPROP(rmsprop, 3, 0, 0)
RMSPROP(rmsprop_of_root, 3, 0, 1)
RMSPROP(rmsprop_centered, 4, 1, 0)
RMSPROP(rmsprop_centered_of_root, 4, 1, 1)

/* b = sqrt(s); s = s + g * g; a = sqrt(s); z = z + g; z = z - (a - b) / rate * p;
   p = (sign(z) * l1 - z) / (a / rate + twice_l2) where |z| > l1, else 0 */
ALWAYS_INLINE static void ftrl_of_row(Size n, float *const *tables, const float *g, int kind, const float *scales) {
    float *p = tables[0], *s = tables[1], *z = tables[2];
    const float l1 = scales[0], twice_l2 = scales[1], rate = scales[2];
    INDEPENDENT
    for (Size i = 0; i < n; i++) {
        float gradient = kind == PRESENT ? g[i] : 0.0f, square = s[i] + gradient * gradient;
        float before = sqrtf(s[i]), after = sqrtf(square), linear = z[i] + gradient;
        linear = linear - (after - before) / rate * p[i];
        s[i] = square;
        z[i] = linear;
        float sign = linear > 0.0f ? 1.0f : linear < 0.0f ? -1.0f : 0.0f;
        float shrunk = (sign * l1 - linear) / (after / rate + twice_l2);
        p[i] = fabsf(linear) > l1 ? shrunk : 0.0f;
    }
}

FOR_ALL_PROCESSORS static void ftrl_rows(const Update *u) { update_each(u, 3, ftrl_of_row); }

/* distinct = the different ids of each section in ascending order, section after section; back[i] = the index of ids[i]
   among them; ends[k] and ends[k + 1], first those of section k in `ids`, become those in `distinct`; returns how many.
   `order` and `spare` have room for the index of each id. */
static Size group_sections(const int64_t *ids, Size sections, int64_t *ends, uint32_t *order, uint32_t *spare,
                           int64_t *distinct, int64_t *back) {
    Size different = 0, start = 0;
    for (Size section = 0; section < sections; section++) {
        const Size first = different, stop = ends[section + 1], count = stop - start;
        const uint32_t *sorted = count ? ascending(count, ids + start, order, spare) : order;
        for (Size at = 0; at < count; at++) {
            const int64_t id = ids[start + sorted[at]];
            if (different == first || id != distinct[different - 1]) distinct[different++] = id;
            back[start + sorted[at]] = different - 1;
        }
        start = stop;
        ends[section + 1] = different;
    }
    return different;
}

/* The rows of each of `sections` parts of a table, numbered from the start of the part, one part after the other: rows
   from ends[k] up to ends[k + 1] belong to part k. Ties keep their order. starts[k] is the place of the first row of
   part k, and starts[sections] their number. The values of consecutive rows are `stride` elements apart. */
FOR_ALL_PROCESSORS static void split_rows(Size count, Size width, const int64_t *rows, const float *value,
                                          Size stride, Size sections, const int64_t *ends, uint32_t *part, int64_t *starts,
                                          int64_t *rows_out, float *value_out) {
    for (Size at = 0; at <= sections; at++) starts[at] = 0;
    for (Size at = 0; at < count; at++) {
        Size low = 0, high = sections;
        while (high - low > 1) {
            Size middle = (low + high) / 2;
            if (rows[at] < ends[middle]) high = middle;
            else low = middle;
        }
        part[at] = (uint32_t)low;
        starts[low]++;
    }
    for (Size at = 0, before = 0; at <= sections; at++) {
        const Size here = starts[at];
        starts[at] = before;
        before += here;
    }
    for (Size at = 0; at < count; at++) {
        const Size place = starts[part[at]]++;
        rows_out[place] = rows[at] - ends[part[at]];
        memcpy(value_out + place * width, value + at * stride, width * sizeof *value);
    }
    for (Size at = sections; at > 0; at--) starts[at] = starts[at - 1];
    starts[0] = 0;
}

/* out = 1 where the random word of an element is at least `bound`, else 0, in rows of `width`. A word mixes the place of
   the element in its row with the two words of the row (the function `lowbias32` of C. Wellons, with `high` added). */
FOR_ALL_PROCESSORS static void draw_mask(Size rows, Size width, const uint32_t *low, const uint32_t *high,
                                         uint32_t bound, uint8_t *out) {
    for (Size row = 0; row < rows; row++, out += width) {
        const uint32_t first = low[row], added = high[row];
        for (Size i = 0; i < width; i++) {
            uint32_t x = first ^ (uint32_t)i * 0x9E3779B9u;
            x ^= x >> 16;
            x *= 0x7FEB352Du;
            x += added;
            x ^= x >> 15;
            x *= 0x846CA68Bu;
            x ^= x >> 16;
            out[i] = x >= bound;
        }
    }
}

/* The finalizer of SplitMix64. */
ALWAYS_INLINE static uint64_t mixed64(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

ALWAYS_INLINE static uint32_t mixed32(uint32_t within, uint64_t of_row) {
    uint32_t x = (uint32_t)of_row ^ within;
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x += (uint32_t)(of_row >> 32);
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    return x ^ (x >> 16);
}

/* out = a random word for each element of rows of `width`: its upper and its lower half are mixed as in draw_mask, from
   the words of the row's place under two keys. */
FOR_ALL_PROCESSORS static void row_words(Size rows, Size width, const uint64_t *places, uint64_t key,
                                         uint64_t other_key, uint64_t *out) {
    for (Size row = 0; row < rows; row++, out += width) {
        const uint64_t place = mixed64(places[row] ^ other_key);
        const uint64_t lower = mixed64(place ^ key), upper = mixed64(place ^ key ^ 0x9E3779B97F4A7C15u);
        for (Size i = 0; i < width; i++) {
            const uint32_t within = (uint32_t)i * 0x9E3779B9u;
            out[i] = (uint64_t)mixed32(within, upper) << 32 | mixed32(within, lower);
        }
    }
}

/* out = x * mask / divisor */
FOR_ALL_PROCESSORS static void masked(Size n, const float *x, const uint8_t *mask, float divisor, float *out) {
    INDEPENDENT
    for (Size i = 0; i < n; i++) out[i] = x[i] * (float)mask[i] / divisor;
}

/* Random words of the generator Philox4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), ten
   rounds, as numpy has it: four words for each value of the counter, which is one more than a block's number. */
#ifdef __SIZEOF_INT128__
#define HAS_PHILOX 1

ALWAYS_INLINE static uint64_t upper_product(uint64_t x, uint64_t y) {
    return (uint64_t)(((unsigned __int128)x * y) >> 64);
}

/* The four words of a value of the counter. */
ALWAYS_INLINE static void philox_words(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t key, uint64_t other_key,
                                       uint64_t *out) {
    const uint64_t factor = 0xD2E7470EE14C6C93u, other_factor = 0xCA5A826395121157u;
    for (int round = 0; round < 10; round++) {
        const uint64_t high = upper_product(factor, a), low = factor * a;
        const uint64_t other_high = upper_product(other_factor, c), other_low = other_factor * c;
        a = other_high ^ b ^ key;
        b = other_low;
        c = high ^ d ^ other_key;
        d = low;
        key += 0x9E3779B97F4A7C15u;
        other_key += 0xBB67AE8584CAA73Bu;
    }
    out[0] = a;
    out[1] = b;
    out[2] = c;
    out[3] = d;
}

static void philox(Size count, const uint64_t *blocks, uint64_t second, const uint64_t *third, uint64_t key,
                   uint64_t other_key, uint64_t *out) {
    for (Size at = 0; at < count; at++, out += 4) {
        uint64_t a = blocks[at] + 1, b = second + (a == 0), c = third ? third[at] : 0;
        c += a == 0 && b == 0;
        philox_words(a, b, c, a == 0 && b == 0 && c == 0, key, other_key, out);
    }
}

/* out = min(low + range * u, last) for the elements of rows of `width`, the row of an id beginning at the element
   first + id * width of a stream; u is (the upper 52 bits of the element's word + 1/2) / 2^52. */
static int uniform_rows(Size count, const uint64_t *ids, uint64_t width, uint64_t first, uint64_t key,
                        uint64_t other_key, double low, double range, double last, float *out) {
    if (first > UINT64_MAX - width) return 0;
    for (Size at = 0; at < count; at++)
        if (upper_product(ids[at], width) || ids[at] * width > UINT64_MAX - first - width) return 0;
    for (Size at = 0; at < count; at++) {
        const uint64_t start = first + ids[at] * width;
        uint64_t words[4];
        for (uint64_t place = start; place < start + width; place++) {
            if (place == start || !(place & 3)) philox_words((place >> 2) + 1, 0, 0, 0, key, other_key, words);
            const double u = ((double)(int64_t)(words[place & 3] >> 12) + 0.5) * 0x1p-52;
            const double value = low + range * u;
            *out++ = (float)(value < last ? value : last);
        }
    }
    return 1;
}
#else
#define HAS_PHILOX 0
#define philox(count, blocks, second, third, key, other_key, out) ((void)0)
#define uniform_rows(count, ids, width, first, key, other_key, low, range, last, out) 0
#endif

/* A hash table of ids: entry e holds one more than the place of an id in `ids`, 0 if it is free, so that new memory of
   the system is a table without ids. The search for an id begins at its home and goes on to the next entry. There are 2
   to the power of 64 - shift entries. */

#define SPREAD 0x9E3779B97F4A7C15u

ALWAYS_INLINE static Size home_of(int64_t id, int shift) { return (Size)(((uint64_t)id * SPREAD) >> shift); }

/* The place of an id, -1 if it has none. */
ALWAYS_INLINE static int32_t place_of(int64_t id, const int64_t *ids, const int32_t *entries, int shift) {
    const Size last = ((Size)1 << (64 - shift)) - 1;
    Size entry = home_of(id, shift);
    while (entries[entry] && ids[entries[entry] - 1] != id) entry = (entry + 1) & last;
    return entries[entry] - 1;
}

/* Fetches what the search for an id that comes soon needs. */
ALWAYS_INLINE static void fetch_place(Size at, Size count, const int64_t *wanted, const int64_t *ids,
                                      const int32_t *entries, int shift) {
    if (at + AHEAD < count) PREFETCH(&entries[home_of(wanted[at + AHEAD], shift)]);
    if (at + AHEAD / 2 < count) {
        const int32_t entry = entries[home_of(wanted[at + AHEAD / 2], shift)];
        if (entry) PREFETCH(&ids[entry - 1]);
    }
}

/* out[i] = the place of wanted[i], -1 if it has none */
static void find_ids(Size count, const int64_t *wanted, const int64_t *ids, const int32_t *entries, int shift,
                     int64_t *out) {
    for (Size at = 0; at < count; at++) {
        fetch_place(at, count, wanted, ids, entries, shift);
        out[at] = place_of(wanted[at], ids, entries, shift);
    }
}

/* As find_ids; also copies the first `width` elements of the rows there, of which there are `held`, to the rows of
   `out`. Returns how many ids have no place. */
static Size look_up_rows(Size count, Size width, const int64_t *wanted, const int64_t *ids, const int32_t *entries,
                         int shift, Table rows, Size held, int64_t *places, float *out) {
    const Size later = AHEAD / 2; /* rows are copied this many ids after they are found, when they have come */
    Size missing = 0;
    for (Size at = 0; at < count + later; at++) {
        if (at < count) {
            fetch_place(at, count, wanted, ids, entries, shift);
            const Size place = place_of(wanted[at], ids, entries, shift);
            places[at] = place < held ? place : -1;
            if (places[at] < 0) missing++;
            else fetch_row(row_of(rows, place), width);
        }
        if (at >= later && places[at - later] >= 0)
            memcpy(out + (at - later) * width, row_of(rows, places[at - later]), width * sizeof *out);
    }
    return missing;
}

/* As find_ids; also sets seen[place], of which there are `held`, to `update`. Returns how many ids have no place. */
static Size enter_rows(Size count, const int64_t *wanted, const int64_t *ids, const int32_t *entries, int shift,
                       uint32_t *seen, Size held, uint32_t update, int64_t *places) {
    Size missing = 0;
    for (Size at = 0; at < count; at++) {
        fetch_place(at, count, wanted, ids, entries, shift);
        const Size place = place_of(wanted[at], ids, entries, shift);
        places[at] = place < held ? place : -1;
        if (places[at] < 0) missing++;
        else seen[place] = update;
    }
    return missing;
}

/* Sets rows[i] to the place of wanted[i], -1 if it has none among the `held` ones, in the ascending `order` of the wanted
   ids, and found[place] to `number`. Returns how many different ids have no place; `*different` is that of all. */
static Size find_in_order(Size count, const int64_t *wanted, const uint32_t *order, const int64_t *ids,
                          const int32_t *entries, int shift, Size held, uint32_t *found, uint32_t number,
                          int64_t *rows, Size *different) {
    Size missing = 0;
    *different = 0;
    for (Size at = 0; at < count; at++) {
        if (at + AHEAD < count) PREFETCH(&entries[home_of(wanted[order[at + AHEAD]], shift)]);
        if (at + AHEAD / 2 < count) {
            const int32_t entry = entries[home_of(wanted[order[at + AHEAD / 2]], shift)];
            if (entry) PREFETCH(&ids[entry - 1]);
        }
        const int64_t id = wanted[order[at]];
        if (at && id == wanted[order[at - 1]]) {
            rows[order[at]] = rows[order[at - 1]];
            continue;
        }
        const Size place = place_of(id, ids, entries, shift);
        ++*different;
        rows[order[at]] = place < held ? place : -1;
        if (rows[order[at]] < 0) missing++;
        else found[place] = number;
    }
    return missing;
}

/* Sets `missing` to the different wanted ids that have no place, in ascending order, which is that of `order`. Returns how
   many there are. */
static Size missing_ids(Size count, const int64_t *wanted, const uint32_t *order, const int64_t *ids,
                        const int32_t *entries, int shift, int64_t *missing) {
    Size found = 0;
    for (Size at = 0; at < count; at++) {
        if (at + AHEAD < count) PREFETCH(&entries[home_of(wanted[order[at + AHEAD]], shift)]);
        if (at + AHEAD / 2 < count) {
            const int32_t entry = entries[home_of(wanted[order[at + AHEAD / 2]], shift)];
            if (entry) PREFETCH(&ids[entry - 1]);
        }
        const int64_t id = wanted[order[at]];
        if (at && id == wanted[order[at - 1]]) continue;
        if (place_of(id, ids, entries, shift) < 0) missing[found++] = id;
    }
    return found;
}

/* Enters the ids at the places `start` to `stop`, which have no entries yet. There are free ones. */
static void enter_ids(Size start, Size stop, const int64_t *ids, int32_t *entries, int shift) {
    const Size last = ((Size)1 << (64 - shift)) - 1;
    for (Size place = start; place < stop; place++) {
        if (place + AHEAD < stop) PREFETCH(&entries[home_of(ids[place + AHEAD], shift)]);
        Size entry = home_of(ids[place], shift);
        while (entries[entry]) entry = (entry + 1) & last;
        entries[entry] = (int32_t)(place + 1);
    }
}

/* Recurrent units over sequences that go forward together: at each step one row of every sequence that is long enough,
   the longest first, so that the rows of a step continue the first rows of the step before. "In the order of steps" is
   step by step. Exponentials, hyperbolic tangents and products are those of numpy, whose functions are called. */

typedef void Inner(char **arguments, const Size *dims, const Size *strides, void *data);

typedef struct {
    Inner *run;
    void *data;
} Function;

static struct {
    Function exp, tanh, log, exp_of_double, log_of_double, matmul;
} numpys;

static void of_each(Function function, Size n, float *x) {
    char *arguments[2] = {(char *)x, (char *)x};
    const Size strides[2] = {sizeof(float), sizeof(float)};
    function.run(arguments, &n, strides, function.data);
}

/* out = the softmax of x, in rows of `width`: shares of exp(max(x - the largest element, least)). `sums` has room for a
   number for each row. */
static void softmax(Size rows, Size width, const float *x, float *out, float least, float *sums) {
    below_largest(rows, width, x, out, least);
    of_each(numpys.exp, rows * width, out);
    shares(rows, width, out, sums);
}

/* A matrix whose rows and columns are so many elements apart. */
typedef struct {
    const float *first;
    Size row, column;
} Matrix;

#define FEW_FACTORS 1000000
#define FEW_RESULTS 1200
#define FEW_ROWS 8
#define LARGE 16384
#define MOST_PARTS 4

/* out = a b, of m rows a and a matrix b of k times n; the rules are those of `product_of` in numpy.py. */
static void multiply(Size m, Size k, Size n, const float *a, Size a_row, Matrix b, float *out, Size out_row) {
    const Size factors = m * k * n;
    const int small = factors <= FEW_FACTORS && (b.column == 1 || m * n <= FEW_RESULTS);
    const int apart = 1 < m && m < FEW_ROWS && k * n >= LARGE && !small;
    Size parts = 1;
    if (!apart && b.column == 1 && factors > FEW_FACTORS) {
        while (parts < MOST_PARTS && n % (2 * parts) == 0 && factors / parts > FEW_FACTORS) parts *= 2;
        if (factors / parts > FEW_FACTORS) parts = 1;
    }
    const Size width = n / parts;
    for (Size part = 0; part < parts; part++) {
        const Size size = sizeof(float);
        char *arguments[3] = {(char *)a, (char *)(b.first + part * width * b.column), (char *)(out + part * width)};
        const Size dims[4] = {apart ? m : 1, apart ? 1 : m, k, width};
        const Size strides[9] = {apart ? a_row * size : 0, 0, apart ? out_row * size : 0,
                                 apart ? 0 : a_row * size, size, b.row * size, b.column * size,
                                 apart ? 0 : out_row * size, size};
        numpys.matmul.run(arguments, dims, strides, numpys.matmul.data);
    }
}

/* out = a b, in one product: numpy's `matmul`, and its `dot` of matrices of several rows and columns. */
static void multiply_at_once(Size m, Size k, Size n, Matrix a, Matrix b, float *out) {
    const Size size = sizeof(float), dims[4] = {1, m, k, n};
    char *arguments[3] = {(char *)a.first, (char *)b.first, (char *)out};
    const Size strides[9] = {0, 0, 0, a.row * size, a.column * size, b.row * size, b.column * size, n * size, size};
    numpys.matmul.run(arguments, dims, strides, numpys.matmul.data);
}

/* x = max(-x, -13), as in Fluid before the exponential of a sigmoid */
FOR_ALL_PROCESSORS static void negate(Size n, float *x) {
    INDEPENDENT
    for (Size i = 0; i < n; i++) x[i] = -x[i] < -13.0f ? -13.0f : -x[i];
}

/* x = 1 / (x + 1) */
FOR_ALL_PROCESSORS static void invert(Size n, float *x) {
    INDEPENDENT
    for (Size i = 0; i < n; i++) x[i] = 1.0f / (x[i] + 1.0f);
}

static void sigmoid_of_each(Size n, float *x) {
    negate(n, x);
    of_each(numpys.exp, n, x);
    invert(n, x);
}

/* The steps: where each of them starts, in the order of steps, and the row of the sequences at each place in it. */
typedef struct {
    Size count, sequences;
    const int64_t *starts, *rows;
} Steps;

/* out = (x + bias) + sums, for one row of `parts` of `width`, whose parts go `apart` from each other */
ALWAYS_INLINE static void add_inputs(Size parts, Size width, const float *x, const float *bias, const float *sums,
                                     float *out, Size apart) {
    for (Size part = 0; part < parts; part++, x += width, sums += width, out += apart) {
        const float *b = bias ? bias + part * width : NULL;
        if (b) {
            INDEPENDENT
            for (Size i = 0; i < width; i++) out[i] = x[i] + b[i] + sums[i];
        } else {
            INDEPENDENT
            for (Size i = 0; i < width; i++) out[i] = x[i] + sums[i];
        }
    }
}

/* A gated recurrent unit: u, r = sigmoid(x + bias + h W); c = tanh(x + bias + (r h) C); h = h + u (c - h), or in origin
   mode c + u (h - c). `gates` has rows of u, r and c, `reset` of r h and `hidden` of h, in the order of steps; `out` has
   h in the order of the sequences. `spare` is as large as five times the rows of the first step. */
typedef struct {
    Steps steps;
    Size width;
    int origin;
    const float *x, *bias, *first;
    Matrix gate, candidate;
    float *gates, *reset, *hidden, *out, *spare;
} Gru;

FOR_ALL_PROCESSORS static void gru_inputs(const Gru *g, Size start, Size m, int parts, const float *sums, float *out) {
    const Size h = g->width, from = parts == 1 ? 2 * h : 0;
    for (Size row = 0; row < m; row++) {
        add_inputs(parts, h, g->x + g->steps.rows[start + row] * 3 * h + from, g->bias ? g->bias + from : NULL,
                   sums + row * parts * h, out + row * h, m * h);
    }
}

FOR_ALL_PROCESSORS static void gru_reset(Size n, const float *r, const float *before, float *out) {
    INDEPENDENT
    for (Size i = 0; i < n; i++) out[i] = r[i] * before[i];
}

FOR_ALL_PROCESSORS static void gru_state(const Gru *g, Size start, Size m, const float *before, const float *u,
                                         const float *c) {
    const Size h = g->width, all = m * h;
    float *hidden = g->hidden + start * h;
    if (g->origin) {
        INDEPENDENT
        for (Size i = 0; i < all; i++) hidden[i] = (before[i] - c[i]) * u[i] + c[i];
    } else {
        INDEPENDENT
        for (Size i = 0; i < all; i++) hidden[i] = (c[i] - before[i]) * u[i] + before[i];
    }
    for (Size row = 0; row < m; row++) {
        float *gates = g->gates + (start + row) * 3 * h;
        for (int part = 0; part < 3; part++) memcpy(gates + part * h, u + part * all + row * h, h * sizeof(float));
        memcpy(g->out + g->steps.rows[start + row] * h, hidden + row * h, h * sizeof(float));
    }
}

static void gru(const Gru *g) {
    const Size h = g->width;
    const float *before = g->first;
    for (Size step = 0; step < g->steps.count; step++) {
        const Size start = g->steps.starts[step], m = g->steps.starts[step + 1] - start;
        float *u = g->spare, *r = u + m * h, *c = r + m * h, *sums = c + m * h;
        multiply(m, h, 2 * h, before, h, g->gate, sums, 2 * h);
        gru_inputs(g, start, m, 2, sums, u);
        sigmoid_of_each(2 * m * h, u);
        gru_reset(m * h, r, before, g->reset + start * h);
        multiply(m, h, h, g->reset + start * h, h, g->candidate, sums, h);
        gru_inputs(g, start, m, 1, sums, c);
        of_each(numpys.tanh, m * h, c);
        gru_state(g, start, m, before, u, c);
        before = g->hidden + start * h;
    }
}

/* The steps of a gated recurrent unit backwards, with the transposed matrices. `grad` has the gradients of the states and
   `x_grad` gets those of the inputs in the order of the sequences, `gates_grad` these in the order of steps, and `before`
   the states before each row. `carried`, zeros at first, becomes the gradient of the first states. `weight_grad` gets the
   gradients of both matrices, one after the other, and `bias_grad` that of the bias. */
typedef struct {
    Steps steps;
    Size width;
    int origin;
    const float *gates, *reset, *hidden, *grad, *first;
    Matrix gate, candidate;
    float *carried, *before, *gates_grad, *x_grad, *weight_grad, *bias_grad, *spare;
} GruBack;

FOR_ALL_PROCESSORS static void gru_back_candidate(const GruBack *g, Size start, Size m, const float *last) {
    const Size h = g->width;
    for (Size row = 0; row < m; row++) {
        const Size place = start + row;
        const float *grad = g->grad + g->steps.rows[place] * h, *b = last + row * h;
        const float *u = g->gates + place * 3 * h, *c = u + 2 * h;
        float *carried = g->carried + row * h, *of_u = g->gates_grad + place * 3 * h, *of_c = of_u + 2 * h;
        if (g->origin) {
            INDEPENDENT
            for (Size i = 0; i < h; i++) {
                const float now = carried[i] + grad[i];
                of_u[i] = now * ((b[i] - c[i]) * ((1.0f - u[i]) * u[i]));
                of_c[i] = now * ((1.0f - c[i] * c[i]) * (1.0f - u[i]));
                carried[i] = now * u[i];
            }
        } else {
            INDEPENDENT
            for (Size i = 0; i < h; i++) {
                const float now = carried[i] + grad[i];
                of_u[i] = now * ((c[i] - b[i]) * ((1.0f - u[i]) * u[i]));
                of_c[i] = now * ((1.0f - c[i] * c[i]) * u[i]);
                carried[i] = now * (1.0f - u[i]);
            }
        }
        memcpy(g->before + place * h, b, h * sizeof(float));
    }
}

FOR_ALL_PROCESSORS static void gru_back_reset(const GruBack *g, Size start, Size m, const float *through) {
    const Size h = g->width;
    for (Size row = 0; row < m; row++, through += h) {
        const Size place = start + row;
        const float *b = g->before + place * h, *r = g->gates + place * 3 * h + h;
        float *carried = g->carried + row * h, *of_r = g->gates_grad + place * 3 * h + h;
        INDEPENDENT
        for (Size i = 0; i < h; i++) {
            of_r[i] = through[i] * ((1.0f - r[i]) * r[i] * b[i]);
            carried[i] = carried[i] + through[i] * r[i];
        }
    }
}

FOR_ALL_PROCESSORS static void add_to(Size n, const float *x, float *sum) {
    INDEPENDENT
    for (Size i = 0; i < n; i++) sum[i] = sum[i] + x[i];
}

static void gru_back(const GruBack *g) {
    const Size h = g->width;
    for (Size step = g->steps.count - 1; step >= 0; step--) {
        const Size start = g->steps.starts[step], m = g->steps.starts[step + 1] - start;
        float *grads = g->gates_grad + start * 3 * h;
        gru_back_candidate(g, start, m, step ? g->hidden + g->steps.starts[step - 1] * h : g->first);
        multiply(m, h, h, grads + 2 * h, 3 * h, g->candidate, g->spare, h);
        gru_back_reset(g, start, m, g->spare);
        multiply(m, 2 * h, h, grads, 3 * h, g->gate, g->spare, h);
        add_to(m * h, g->spare, g->carried);
        for (Size row = 0; row < m; row++) {
            memcpy(g->x_grad + g->steps.rows[start + row] * 3 * h, grads + row * 3 * h, 3 * h * sizeof(float));
        }
    }
    const Size all = g->steps.starts[g->steps.count];
    const Matrix before = {g->before, 1, h}, reset = {g->reset, 1, h};
    const Matrix of_gates = {g->gates_grad, 3 * h, 1}, of_candidate = {g->gates_grad + 2 * h, 3 * h, 1};
    multiply_at_once(h, all, 2 * h, before, of_gates, g->weight_grad);
    multiply_at_once(h, all, h, reset, of_candidate, g->weight_grad + 2 * h * h);
    sum_rows(all, 3 * h, g->gates_grad, g->bias_grad);
}

/* A long short-term memory, as in recurrent.py: rows of x have the inputs of c, i, f and o. With peepholes wi, wf, wo, of
   `width` each, and a projection [width, state], both of which may be missing. `gates`, `active` (tanh of the cells),
   `hidden`, and `outputs` (projections) are in the order of steps; `out` (states) and `cells` in that of the sequences.
   `spare` is as large as nine times the rows of the first step. */
typedef struct {
    Steps steps;
    Size width, state;
    int tanh_of_projection;
    const float *x, *bias, *peepholes, *first, *first_cell;
    Matrix weight, projection;
    float *gates, *active, *hidden, *outputs, *out, *cells, *spare;
} Lstm;

FOR_ALL_PROCESSORS static void lstm_inputs(const Lstm *l, Size start, Size m, const float *cell, const float *sums,
                                           float *parts) {
    const Size h = l->width;
    for (Size row = 0; row < m; row++) {
        add_inputs(4, h, l->x + l->steps.rows[start + row] * 4 * h, l->bias, sums + row * 4 * h, parts + row * h,
                   m * h);
        if (!l->peepholes) continue;
        const float *wi = l->peepholes, *wf = wi + h, *s = cell + row * h;
        float *i = parts + m * h + row * h, *f = i + m * h;
        INDEPENDENT
        for (Size at = 0; at < h; at++) {
            i[at] = i[at] + s[at] * wi[at];
            f[at] = f[at] + s[at] * wf[at];
        }
    }
}

FOR_ALL_PROCESSORS static void lstm_cells(const Lstm *l, Size start, Size m, float *cell, float *parts) {
    const Size h = l->width, all = m * h;
    const float *c = parts, *i = c + all, *f = i + all;
    float *o = parts + 3 * all, *active = l->active + start * h;
    INDEPENDENT
    for (Size at = 0; at < all; at++) cell[at] = c[at] * i[at] + cell[at] * f[at];
    memcpy(active, cell, all * sizeof(float));
    for (Size row = 0; row < m; row++) {
        memcpy(l->cells + l->steps.rows[start + row] * h, cell + row * h, h * sizeof(float));
        if (!l->peepholes) continue;
        const float *wo = l->peepholes + 2 * h, *s = cell + row * h;
        INDEPENDENT
        for (Size at = 0; at < h; at++) o[row * h + at] = o[row * h + at] + s[at] * wo[at];
    }
}

FOR_ALL_PROCESSORS static void lstm_hidden(const Lstm *l, Size start, Size m, const float *parts) {
    const Size h = l->width, all = m * h;
    const float *o = parts + 3 * all, *active = l->active + start * h;
    float *hidden = l->hidden + start * h;
    INDEPENDENT
    for (Size at = 0; at < all; at++) hidden[at] = o[at] * active[at];
    for (Size row = 0; row < m; row++) {
        float *gates = l->gates + (start + row) * 4 * h;
        for (int part = 0; part < 4; part++) memcpy(gates + part * h, parts + part * all + row * h, h * sizeof(float));
    }
}

static void lstm(const Lstm *l) {
    const Size h = l->width, s = l->state;
    const float *state = l->first;
    float *cell = l->spare, *parts = cell + l->steps.sequences * h, *sums = parts + 4 * l->steps.sequences * h;
    memcpy(cell, l->first_cell, l->steps.sequences * h * sizeof(float));
    for (Size step = 0; step < l->steps.count; step++) {
        const Size start = l->steps.starts[step], m = l->steps.starts[step + 1] - start;
        multiply(m, s, 4 * h, state, s, l->weight, sums, 4 * h);
        lstm_inputs(l, start, m, cell, sums, parts);
        of_each(numpys.tanh, m * h, parts);
        sigmoid_of_each((l->peepholes ? 2 : 3) * m * h, parts + m * h);
        lstm_cells(l, start, m, cell, parts);
        if (l->peepholes) sigmoid_of_each(m * h, parts + 3 * m * h);
        of_each(numpys.tanh, m * h, l->active + start * h);
        lstm_hidden(l, start, m, parts);
        float *outputs = l->outputs + start * s;
        if (l->projection.first) {
            multiply(m, h, s, l->hidden + start * h, h, l->projection, outputs, s);
            if (l->tanh_of_projection) of_each(numpys.tanh, m * s, outputs);
        }
        for (Size row = 0; row < m; row++) {
            memcpy(l->out + l->steps.rows[start + row] * s, outputs + row * s, s * sizeof(float));
        }
        state = outputs;
    }
}

/* The steps of a long short-term memory backwards, with the transposed matrices. `cells`, `outputs`, `grad` (of the
   outputs) and `x_grad` are in the order of the sequences; the others are in the order of steps: `before` gets the
   outputs and `cells_before` the cells before each row, `projected` the gradients of projections before their
   activation. `state_grad` and `cell_grad`, zeros at first, become the gradients of the first states and cells. */
typedef struct {
    Steps steps;
    Size width, state;
    int tanh_of_projection;
    const float *peepholes, *gates, *cells, *active, *outputs, *grad, *first, *first_cell;
    Matrix weight, projection;
    float *state_grad, *cell_grad, *before, *cells_before, *projected, *gates_grad, *x_grad, *spare;
} LstmBack;

FOR_ALL_PROCESSORS static void lstm_back_rows(const LstmBack *l, Size step) {
    const Size h = l->width, s = l->state, start = l->steps.starts[step], stop = l->steps.starts[step + 1];
    for (Size place = start; place < stop; place++) {
        const Size row = place - start, here = l->steps.rows[place];
        const float *grad = l->grad + here * s, *state = l->state_grad + row * s, *y = l->outputs + here * s;
        float *now = l->projected + place * s;
        if (l->tanh_of_projection) {
            INDEPENDENT
            for (Size i = 0; i < s; i++) now[i] = (grad[i] + state[i]) * (1.0f - y[i] * y[i]);
        } else {
            INDEPENDENT
            for (Size i = 0; i < s; i++) now[i] = grad[i] + state[i];
        }
        const Size last = step ? l->steps.rows[l->steps.starts[step - 1] + row] : row;
        memcpy(l->before + place * s, (step ? l->outputs : l->first) + last * s, s * sizeof(float));
        memcpy(l->cells_before + place * h, (step ? l->cells : l->first_cell) + last * h, h * sizeof(float));
    }
}

ALWAYS_INLINE static void lstm_back_row(const LstmBack *l, Size place, Size row, const float *grad, int peepholes) {
    const Size h = l->width;
    const float *wi = l->peepholes, *wf = wi + h, *wo = wf + h;
    const float *c = l->gates + place * 4 * h, *i = c + h, *f = i + h, *o = f + h;
    const float *active = l->active + place * h, *before = l->cells_before + place * h;
    float *of_c = l->gates_grad + place * 4 * h, *of_i = of_c + h, *of_f = of_i + h, *of_o = of_f + h;
    float *cell = l->cell_grad + row * h;
    INDEPENDENT
    for (Size at = 0; at < h; at++) {
        const float now = grad[at], output = (1.0f - o[at]) * o[at] * active[at];
        const float to_i = (1.0f - i[at]) * i[at] * c[at], to_f = (1.0f - f[at]) * f[at] * before[at];
        float of_cell = (1.0f - active[at] * active[at]) * o[at], kept = f[at];
        if (peepholes) {
            of_cell = of_cell + output * wo[at];
            kept = kept + to_i * wi[at];
            kept = kept + to_f * wf[at];
        }
        of_o[at] = now * output;
        const float later = cell[at] + now * of_cell;
        of_c[at] = later * ((1.0f - c[at] * c[at]) * i[at]);
        of_i[at] = later * to_i;
        of_f[at] = later * to_f;
        cell[at] = later * kept;
    }
    memcpy(l->x_grad + l->steps.rows[place] * 4 * h, of_c, 4 * h * sizeof(float));
}

FOR_ALL_PROCESSORS static void lstm_back_gates(const LstmBack *l, Size start, Size m, const float *grad) {
    for (Size row = 0; row < m; row++, grad += l->width) {
        if (l->peepholes) {
            lstm_back_row(l, start + row, row, grad, 1);
        } else {
            lstm_back_row(l, start + row, row, grad, 0);
        }
    }
}

static void lstm_back(const LstmBack *l) {
    const Size h = l->width, s = l->state;
    for (Size step = l->steps.count - 1; step >= 0; step--) {
        const Size start = l->steps.starts[step], m = l->steps.starts[step + 1] - start;
        const float *hidden_grad = l->projected + start * s;
        lstm_back_rows(l, step);
        if (l->projection.first) {
            multiply(m, s, h, hidden_grad, s, l->projection, l->spare, h);
            hidden_grad = l->spare;
        }
        lstm_back_gates(l, start, m, hidden_grad);
        multiply(m, 4 * h, s, l->gates_grad + start * 4 * h, 4 * h, l->weight, l->state_grad, s);
    }
}

/* out [7 h] = the gradients of the bias and the peepholes of a long short-term memory, sums over all places in the order
   of steps: of the gradients `gates`, of those of i and f times the cells before, and of that of o times the cell, which
   is in the order of the sequences. */
FOR_ALL_PROCESSORS static void lstm_bias_grad(Size places, Size h, const float *gates, const float *before,
                                              const float *cells, const int64_t *rows, float *out) {
    memset(out, 0, 7 * h * sizeof(float));
    for (Size place = 0; place < places; place++, gates += 4 * h, before += h) {
        const float *cell = cells + rows[place] * h;
        const int is_first = !place; /* sums begin with their first term, which may be -0 */
        for (Size part = 0; part < 7; part++) {
            const float *of = gates + (part < 4 ? part : part - 3) * h, *by = part < 6 ? before : cell;
            float *sum = out + part * h;
            if (part < 4 && is_first) {
                memcpy(sum, of, h * sizeof(float));
            } else if (part < 4) {
                INDEPENDENT
                for (Size i = 0; i < h; i++) sum[i] = sum[i] + of[i];
            } else if (is_first) {
                INDEPENDENT
                for (Size i = 0; i < h; i++) sum[i] = of[i] * by[i];
            } else {
                INDEPENDENT
                for (Size i = 0; i < h; i++) sum[i] = sum[i] + of[i] * by[i];
            }
        }
    }
}

/* Sequences of rows, none of them empty: where each of them starts, and the end of the last one. */

/* out = the sum of each column of the runs of rows that begin at `starts`, which ascend, in the order of numpy's
   reduceat: the first row, plus the others one by one from `zero` on, or from 8 others on in 8 sums. No run has more
   than 129 rows. `spare` has room for 8 rows. */
FOR_ALL_PROCESSORS static void sum_runs(Size runs, const int64_t *starts, Size rows, Size width, const float *x,
                                        float *out, float zero, float *spare) {
    for (Size run = 0; run < runs; run++, out += width) {
        const Size end = run + 1 < runs ? (Size)starts[run + 1] : rows, others = end - (Size)starts[run] - 1;
        const float *first = x + starts[run] * width, *other = first + width;
        Size at = 0;
        if (!others) {
            memcpy(out, first, width * sizeof(float));
            continue;
        }
        if (others < 8) {
            for (Size i = 0; i < width; i++) out[i] = zero;
        } else {
            memcpy(spare, other, 8 * width * sizeof(float));
            for (at = 8; at < others - others % 8; at += 8) {
                INDEPENDENT
                for (Size i = 0; i < 8 * width; i++) spare[i] = spare[i] + other[at * width + i];
            }
            const float *a = spare, *b = spare + 4 * width;
            INDEPENDENT
            for (Size i = 0; i < width; i++) {
                out[i] = ((a[i] + a[width + i]) + (a[2 * width + i] + a[3 * width + i])) +
                         ((b[i] + b[width + i]) + (b[2 * width + i] + b[3 * width + i]));
            }
        }
        for (; at < others; at++) {
            INDEPENDENT
            for (Size i = 0; i < width; i++) out[i] = out[i] + other[at * width + i];
        }
        INDEPENDENT
        for (Size i = 0; i < width; i++) out[i] = first[i] + out[i];
    }
}

/* out = the largest of each column of every sequence, and `places` the first row that has it; NaN is the largest. */
FOR_ALL_PROCESSORS static void largest_of_runs(Size runs, const int64_t *offsets, Size width, const float *x, float *out,
                                               int32_t *places) {
    for (Size run = 0; run < runs; run++, out += width, places += width) {
        memcpy(out, x + offsets[run] * width, width * sizeof(float));
        for (Size i = 0; i < width; i++) places[i] = (int32_t)offsets[run];
        for (int64_t row = offsets[run] + 1; row < offsets[run + 1]; row++) {
            const float *now = x + row * width;
            const int32_t place = (int32_t)row;
            INDEPENDENT
            for (Size i = 0; i < width; i++) {
                const int more = (now[i] > out[i]) | ((now[i] != now[i]) & (out[i] == out[i]));
                out[i] = more ? now[i] : out[i];
                places[i] = more ? place : places[i];
            }
        }
    }
}

/* The rows around each row of a sequence, `length` of them from `start` on: windows = those of x, 0 outside of the
   sequence. */
static void windows_of_runs(Size runs, const int64_t *offsets, Size width, Size start, Size length, const float *x,
                            float *windows) {
    for (Size run = 0; run < runs; run++) {
        for (Size row = offsets[run]; row < offsets[run + 1]; row++) {
            for (Size at = row + start; at < row + start + length; at++, windows += width) {
                if (at >= offsets[run] && at < offsets[run + 1]) {
                    memcpy(windows, x + at * width, width * sizeof(float));
                } else {
                    memset(windows, 0, width * sizeof(float));
                }
            }
        }
    }
}

/* x, zeros at first, += all occurrences of each row in the windows */
FOR_ALL_PROCESSORS static void windows_back(Size runs, const int64_t *offsets, Size width, Size start, Size length,
                                            const float *windows, float *x) {
    for (Size run = 0; run < runs; run++) {
        for (Size row = offsets[run]; row < offsets[run + 1]; row++) {
            for (Size at = row + start; at < row + start + length; at++, windows += width) {
                if (at < offsets[run] || at >= offsets[run + 1]) continue;
                float *sum = x + at * width;
                INDEPENDENT
                for (Size i = 0; i < width; i++) sum[i] = sum[i] + windows[i];
            }
        }
    }
}

/* Chains of labels: the linear-chain random field. `labels` are so many; transitions, their exponentials and their
   gradients are matrices of a row of first labels, a row of last labels, and a row for each label that one goes on from.
   Rows lie in the order of the sequences, whose boundaries are `offsets`; `path` has the label of each row. */
typedef struct {
    Steps steps;
    Size labels, runs, every;
    const int64_t *offsets, *path;
    const float *x, *w, *alpha, *run_grads; /* emissions and transitions (back: their exponentials) */
    float *exps, *w_exps, *out, *logs, *lasts, *grad, *w_grad, *spare;
} Chains;

ALWAYS_INLINE static void to_shares(Size width, float *x) {
    const float sum = sum_of_row(width, x);
    INDEPENDENT
    for (Size i = 0; i < width; i++) x[i] = x[i] / sum;
}

#define CHAIN_RANGE 20.0    /* `_RANGE` in labels.py */
#define LEAST_SPREAD 1e-3   /* `_LEAST_SPREAD` */

/* The result of numpy's function for a number, which it takes as an array without dims. */
static float of_float(Function function, float x) {
    float out = 0.0f;
    char *arguments[2] = {(char *)&x, (char *)&out};
    const Size count = 1, strides[2] = {0, 0};
    function.run(arguments, &count, strides, function.data);
    return out;
}

static double of_double(Function function, double x) {
    double out = 0.0;
    char *arguments[2] = {(char *)&x, (char *)&out};
    const Size count = 1, strides[2] = {0, 0};
    function.run(arguments, &count, strides, function.data);
    return out;
}

/* going_on = the transitions between k labels divided by a factor, by the rules of `_scale` in labels.py: sets the
   logarithm of the factor, and gives the most steps between two normalisations. */
static Size scale_chains(Size k, const float *transitions, float *going_on, float *factor_log) {
    float least = transitions[0], most = transitions[0];
    for (Size i = 1; i < k * k; i++) {
        const float now = transitions[i];
        if (now < least || now != now) least = now;
        if (now > most || now != now) most = now;
    }
    double shrinks = -INFINITY, spread, factor = 1.0;
    if (least > 0.0f) {
        shrinks = of_float(numpys.log, least);
        shrinks = shrinks < 0.0 ? shrinks : 0.0;
    }
    const double grows = of_float(numpys.log, most * (float)k);
    Size every = 1;
    spread = grows - shrinks;
    if (spread - spread == 0.0) { /* finite */
        factor = of_double(numpys.exp_of_double, (shrinks + grows) / 2.0);
        spread = spread < LEAST_SPREAD ? LEAST_SPREAD : spread;
        every = (Size)(2.0 * CHAIN_RANGE / spread);
        if (every < 1) every = 1;
        const float divisor = (float)factor;
        for (Size i = 0; i < k * k; i++) going_on[i] = transitions[i] / divisor;
    } else {
        memcpy(going_on, transitions, k * k * sizeof(float));
    }
    *factor_log = (float)of_double(numpys.log_of_double, factor);
    return every;
}

/* out = the forward weights of every row; they are divided by their sum for the next row where `noted` becomes 1. */
FOR_ALL_PROCESSORS static void weights_ahead(const Chains *c, const float *going_on, float *noted, float *before,
                                             float *into) {
    const Size k = c->labels;
    const Matrix transitions = {going_on, k, 1};
    for (Size step = 0; step < c->steps.count; step++) {
        const Size start = c->steps.starts[step], m = c->steps.starts[step + 1] - start;
        if (step) multiply(m, k, k, before, k, transitions, into, k);
        for (Size row = 0; row < m; row++) {
            const Size here = c->steps.rows[start + row];
            const float *given = step ? into + row * k : c->w_exps, *x = c->exps + here * k;
            float *now = before + row * k;
            INDEPENDENT
            for (Size i = 0; i < k; i++) now[i] = x[i] * given[i];
            memcpy(c->out + here * k, now, k * sizeof(float));
            if ((step + 1) % c->every == 0) {
                to_shares(k, now);
                noted[here] = 1.0f;
            }
        }
    }
}

/* exps = exp(x - the largest number of the row); largest = these numbers */
FOR_ALL_PROCESSORS static void exps_below_largest(Size rows, Size k, const float *x, float *exps, float *largest) {
    for (Size row = 0; row < rows; row++) {
        float most = x[row * k];
        for (Size i = 1; i < k; i++) {
            const float now = x[row * k + i];
            if (now > most || now != now) most = now;
        }
        largest[row] = most;
        INDEPENDENT
        for (Size i = 0; i < k; i++) exps[row * k + i] = x[row * k + i] - most;
    }
    of_each(numpys.exp, rows * k, exps);
}

/* exps, w_exps = the exponentials; out = the forward weights of every row, which sum to 1; logs = numbers whose sum over
   a sequence is the logarithm of the weight of all paths, without that of the last labels, over the weight of `path`;
   lasts = the last row of `out` of each sequence that has one. `spare` has room for two matrices of a row for each
   sequence, the transitions between labels, and three numbers for each row. */
FOR_ALL_PROCESSORS static void chains_ahead(Chains *c) {
    const Size k = c->labels, all = c->offsets[c->runs];
    float *before = c->spare, *into = before + c->steps.sequences * k, *going_on = into + c->steps.sequences * k;
    float *noted = going_on + k * k, *largest = noted + all, *sums = largest + all, factor_log, *lasts = c->lasts;
    exps_below_largest(all, k, c->x, c->exps, largest);
    memcpy(c->w_exps, c->w, (k + 2) * k * sizeof(float));
    of_each(numpys.exp, (k + 2) * k, c->w_exps);
    c->every = scale_chains(k, c->w_exps + 2 * k, going_on, &factor_log);
    memset(noted, 0, all * sizeof(float));
    weights_ahead(c, going_on, noted, before, into);
    for (Size row = 0; row < all; row++) {
        float *now = c->out + row * k;
        const float sum = c->logs[row] = sum_of_row(k, now);
        INDEPENDENT
        for (Size i = 0; i < k; i++) now[i] = now[i] / sum;
    }
    memcpy(sums, c->logs, all * sizeof(float));
    of_each(numpys.log, all, sums);
    for (Size run = 0; run < c->runs; run++) {
        const Size first = c->offsets[run], end = c->offsets[run + 1];
        for (Size row = first; row < end; row++) {
            const int64_t label = c->path[row];
            float score = c->x[row * k + label], log = sums[row] * (row == end - 1 ? 1.0f : noted[row]);
            if (row == first) score += c->w[label];
            else {
                score += c->w[(2 + c->path[row - 1]) * k + label];
                log += factor_log;
            }
            if (row == end - 1) score += c->w[k + label];
            c->logs[row] = log + largest[row] - score;
        }
        if (first < end) {
            memcpy(lasts, c->out + (end - 1) * k, k * sizeof(float));
            lasts += k;
        }
    }
}

/* out = the backward weights of every row up to a factor, and behind = their products with the row's own. `backwards` are
   the transitions, transposed. */
FOR_ALL_PROCESSORS static void weights_back(const Chains *c, const float *backwards, float *out, float *behind,
                                            float *after, float *into) {
    const Size k = c->labels;
    const Matrix transitions = {backwards, k, 1};
    for (Size step = c->steps.count - 1, known = 0, number = 1; step >= 0; step--, number++) {
        const Size start = c->steps.starts[step], m = c->steps.starts[step + 1] - start;
        if (known) multiply(known, k, k, after, k, transitions, into, k);
        for (Size row = 0; row < m; row++) {
            const Size here = c->steps.rows[start + row] * k;
            const float *given = row < known ? into + row * k : c->w + k, *x = c->x + here;
            float *now = after + row * k;
            memcpy(out + here, given, k * sizeof(float));
            INDEPENDENT
            for (Size i = 0; i < k; i++) now[i] = given[i] * x[i];
            if (number % c->every == 0) to_shares(k, now);
            memcpy(behind + here, now, k * sizeof(float));
        }
        known = m;
    }
}

/* sums = the sum of a row of each sequence that has one: of the first rows, or with `last` of the last ones */
ALWAYS_INLINE static void sum_ends(const Chains *c, int last, float *sums) {
    const Size k = c->labels;
    int any = 0;
    for (Size run = 0; run < c->runs; run++) {
        if (c->offsets[run] == c->offsets[run + 1]) continue;
        const float *row = c->grad + (last ? c->offsets[run + 1] - 1 : c->offsets[run]) * k;
        INDEPENDENT
        for (Size i = 0; i < k; i++) sums[i] = any ? sums[i] + row[i] : row[i];
        any = 1;
    }
}

/* grad, w_grad = the gradients of emissions and transitions, from the exponentials x and w of these, the results `alpha`
   of `chains_ahead`, and the gradients of the logarithms of the sequences. There are several labels, and several rows
   after first ones. `spare` has room for two matrices of a row for each sequence, two of transitions between labels, and
   four of a row for each row. */
FOR_ALL_PROCESSORS static void chains_back(Chains *c) {
    const Size k = c->labels, all = c->offsets[c->runs];
    const float *transitions = c->w + 2 * k;
    float *after = c->spare, *into = after + c->steps.sequences * k, *going_on = into + c->steps.sequences * k;
    float *backwards = going_on + k * k, *behind = backwards + k * k, factor_log;
    float *before = behind + all * k, *later = before + all * k, *products = later + all * k;
    c->every = scale_chains(k, transitions, going_on, &factor_log);
    for (Size i = 0; i < k; i++) {
        for (Size j = 0; j < k; j++) backwards[j * k + i] = going_on[i * k + j];
    }
    weights_back(c, backwards, c->grad, behind, after, into);
    Size pairs = 0;
    for (Size run = 0; run < c->runs; run++) {
        const float given = c->run_grads[run];
        for (Size row = c->offsets[run]; row < c->offsets[run + 1]; row++) {
            float *now = c->grad + row * k;
            const float *alpha = c->alpha + row * k;
            INDEPENDENT
            for (Size i = 0; i < k; i++) now[i] = alpha[i] * now[i];
            to_shares(k, now);
            now[c->path[row]] -= 1.0f;
            INDEPENDENT
            for (Size i = 0; i < k; i++) now[i] = now[i] * given;
            if (row == c->offsets[run]) continue;
            memcpy(before + pairs * k, alpha - k, k * sizeof(float));
            memcpy(later + pairs * k, behind + row * k, k * sizeof(float));
            pairs++;
        }
    }
    sum_ends(c, 0, c->w_grad);
    sum_ends(c, 1, c->w_grad + k);
    multiply_at_once(pairs, k, k, (Matrix){before, k, 1}, (Matrix){transitions, k, 1}, products);
    Size pair = 0;
    for (Size run = 0; run < c->runs; run++) {
        for (Size row = c->offsets[run] + 1; row < c->offsets[run + 1]; row++, pair++) {
            float *product = products + pair * k, *now = before + pair * k;
            const float *to = later + pair * k;
            INDEPENDENT
            for (Size i = 0; i < k; i++) product[i] = product[i] * to[i];
            const float share = c->run_grads[run] / sum_of_row(k, product);
            INDEPENDENT
            for (Size i = 0; i < k; i++) now[i] = now[i] * share;
        }
    }
    float *of_pairs = c->w_grad + 2 * k;
    multiply_at_once(k, pairs, k, (Matrix){before, 1, k}, (Matrix){later, k, 1}, of_pairs);
    INDEPENDENT
    for (Size i = 0; i < k * k; i++) of_pairs[i] = of_pairs[i] * transitions[i];
    for (Size run = 0; run < c->runs; run++) {
        for (Size row = c->offsets[run] + 1; row < c->offsets[run + 1]; row++)
            of_pairs[c->path[row - 1] * k + c->path[row]] -= c->run_grads[run];
    }
}

ALWAYS_INLINE static Size place_of_largest(Size n, const float *x, const float *y) {
    Size place = 0;
    float largest = x[0] + y[0];
    for (Size i = 1; i < n && largest == largest; i++) {
        const float now = x[i] + y[i];
        if (now > largest || now != now) {
            largest = now;
            place = i;
        }
    }
    return place;
}

/* path = the best label of every row. `x` are the emissions, `ends` the weights of the first and last labels, and `into`
   the transitions, transposed: from each label to one. `scores` are as large as x. */
FOR_ALL_PROCESSORS static void best_path(const Steps *s, Size k, const float *x, const float *ends, const float *into,
                                         float *scores, int64_t *path) {
    for (Size step = 0; step < s->count; step++) {
        const Size start = s->starts[step];
        for (Size row = 0; row < s->starts[step + 1] - start; row++) {
            const Size here = s->rows[start + row] * k;
            const float *before = step ? scores + s->rows[s->starts[step - 1] + row] * k : NULL;
            for (Size to = 0; to < k; to++) {
                const float *from = into + to * k;
                float best = ends[to];
                if (before) {
                    best = before[0] + from[0];
                    for (Size i = 1; i < k; i++) {
                        const float now = before[i] + from[i];
                        best = (now > best) | (now != now) ? now : best;
                    }
                }
                scores[here + to] = x[here + to] + best;
            }
        }
    }
    for (Size step = s->count - 1, known = 0; step >= 0; step--) {
        const Size start = s->starts[step], m = s->starts[step + 1] - start;
        for (Size row = 0; row < m; row++) {
            const Size here = s->rows[start + row];
            const float *to = row < known ? into + path[s->rows[s->starts[step + 1] + row]] * k : ends + k;
            path[here] = place_of_largest(k, scores + here * k, to);
        }
        known = m;
    }
}

/* One step of a long short-term memory whose rows of x have the inputs of i, f, o and g: c = before * sigmoid(f + bias) +
   sigmoid(i) * tanh(g); h = sigmoid(o) * tanh(c). `spare` gets i, f, o and g of all rows one after the other, and is as
   large as x. */
FOR_ALL_PROCESSORS static void unit_parts(Size rows, Size h, const float *x, float bias, float *spare) {
    const Size all = rows * h;
    for (Size row = 0; row < rows; row++, x += 4 * h) {
        float *f = spare + all + row * h;
        memcpy(spare + row * h, x, h * sizeof(float));
        INDEPENDENT
        for (Size i = 0; i < h; i++) f[i] = x[h + i] + bias;
        memcpy(spare + 2 * all + row * h, x + 2 * h, h * sizeof(float));
        memcpy(spare + 3 * all + row * h, x + 3 * h, h * sizeof(float));
    }
}

static void unit_gates(Size rows, Size h, const float *x, float bias, float *spare) {
    unit_parts(rows, h, x, bias, spare);
    sigmoid_of_each(3 * rows * h, spare);
    of_each(numpys.tanh, rows * h, spare + 3 * rows * h);
}

FOR_ALL_PROCESSORS static void unit_cells(Size n, const float *gates, const float *before, float *cell, float *hidden) {
    const float *i = gates, *f = i + n, *g = f + 2 * n;
    INDEPENDENT
    for (Size at = 0; at < n; at++) hidden[at] = cell[at] = before[at] * f[at] + i[at] * g[at];
}

FOR_ALL_PROCESSORS static void unit_hidden(Size n, const float *gates, float *hidden) {
    const float *o = gates + 2 * n;
    INDEPENDENT
    for (Size at = 0; at < n; at++) hidden[at] = o[at] * hidden[at];
}

static void lstm_unit(Size rows, Size h, const float *x, const float *before, float bias, float *cell, float *hidden,
                      float *spare) {
    unit_gates(rows, h, x, bias, spare);
    unit_cells(rows * h, spare, before, cell, hidden);
    of_each(numpys.tanh, rows * h, hidden);
    unit_hidden(rows * h, spare, hidden);
}

typedef struct {
    const float *x, *before, *cell, *cell_grad, *hidden_grad;
    float *x_grad, *before_grad, *spare;
} LstmUnitBack;

FOR_ALL_PROCESSORS static void unit_back(Size rows, Size h, const LstmUnitBack *u) {
    const Size all = rows * h;
    for (Size row = 0; row < rows; row++) {
        const Size here = row * h;
        const float *i = u->spare + here, *f = i + all, *o = f + all, *g = o + all, *active = g + all;
        const float *of_cell = u->cell_grad + here, *of_hidden = u->hidden_grad + here, *before = u->before + here;
        float *to = u->x_grad + 4 * here, *of_before = u->before_grad + here;
        INDEPENDENT
        for (Size at = 0; at < h; at++) {
            const float grad = of_cell[at] + of_hidden[at] * o[at] * (1.0f - active[at] * active[at]);
            to[at] = grad * g[at] * ((1.0f - i[at]) * i[at]);
            to[h + at] = grad * before[at] * ((1.0f - f[at]) * f[at]);
            to[2 * h + at] = of_hidden[at] * active[at] * ((1.0f - o[at]) * o[at]);
            to[3 * h + at] = grad * i[at] * (1.0f - g[at] * g[at]);
            of_before[at] = grad * f[at];
        }
    }
}

/* `spare` is five times as large as the cells. */
static void lstm_unit_back(Size rows, Size h, float bias, const LstmUnitBack *u) {
    float *active = u->spare + 4 * rows * h;
    unit_gates(rows, h, u->x, bias, u->spare);
    memcpy(active, u->cell, rows * h * sizeof(float));
    of_each(numpys.tanh, rows * h, active);
    unit_back(rows, h, u);
}
