/* Kernels for CPUs: fused pointwise operations, products with packed weights, decode attention, and the layers of a
   decoding pass. kernels.py and decoding.py call them. torch computes all other products.
   Tensors are bfloat16, or float32 if FP32 is defined.

   The source is C11. gcc and clang vectorize its loops; code that they do not vectorize uses explicit vector types.
   Tensors are contiguous unless a stride is an argument. Sizes and strides are numbers of elements. Arithmetic is
   fp32, and stores round to nearest even. One thread computes a row in a fixed order, so results do not depend on the
   number of threads. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef FP32
typedef float real;
#undef __AMX_BF16__ /* so it says whether products are computed by AMX */
#else
typedef uint16_t real; /* bfloat16 */
#endif

#if defined __AVX512BF16__ || defined __AMX_BF16__
#include <immintrin.h>
#endif

#define LOG2E 1.44269504088896341f
#define LOWEST -1e30f
#define FLOOR -100.0f
#define INLINE inline __attribute__((always_inline))
#define PRAGMA(text) _Pragma(#text)
#define PARALLEL(work) PRAGMA(omp parallel for schedule(static) if ((work) > GRAIN))

enum { PAD = 32, MOST_DIM = 256, COLUMNS = 32, GRAIN = 32768 /* minimum number of elements for a parallel loop */ };

#ifdef FP32
static inline float wide(real x) { return x; }
static inline real narrow(float x) { return x; }
#else
static inline float wide(real x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

static inline real narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (real)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#endif

static inline float rounded(float x) { return wide(narrow(x)); }

/* Return 2^x for x < 127, with a relative error below 2e-7. For x < FLOOR return 2^FLOOR, because products with
   denormal numbers are slow. */
static inline float pow2(float x) {
    x = x < FLOOR ? FLOOR : x;
    float whole = rintf(x), part = x - whole;
    float y = 0.00132647273f;
    y = y * part + 0.00967151273f;
    y = y * part + 0.0555073374f;
    y = y * part + 0.240222421f;
    y = y * part + 0.693146978f;
    y = y * part + 1.0f;
    int32_t bits;
    memcpy(&bits, &y, sizeof bits);
    bits += (int32_t)whole * (1 << 23);
    memcpy(&y, &bits, sizeof y);
    return y;
}

static inline float sigmoid(float x) {
    float t = -LOG2E * x;
    return 1.0f / (1.0f + pow2(t > 126.0f ? 126.0f : t));
}

static void widen_row(const real *x, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = wide(x[i]);
}

static void narrow_row(const float *x, int64_t n, float scale, real *y) {
    for (int64_t i = 0; i < n; i++) y[i] = narrow(x[i] * scale);
}

/* Overwrite x with 2^(a * (x - max(x))) and return the sum. The buffer of x has room for n + PAD elements. */
static float exponentials(float *x, int64_t n, float a) {
    for (int64_t i = 0; i < PAD; i++) x[n + i] = LOWEST;
    n = (n + PAD - 1) / PAD * PAD;
    float max = LOWEST, sum = 0;
    for (int64_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int64_t i = 0; i < n; i++) sum += x[i] = pow2(a * (x[i] - max));
    return sum;
}

/* Overwrite products of queries and keys with numbers in proportion to their probabilities, and return the sum. A score
   is scale * x, or softcap * tanh(scale * x / softcap) if softcap is not 0. If `sink` is given, x[n] becomes that of the
   sink, which is a score already. The buffer of x has room for n + 1 + PAD elements. */
static INLINE float score_exponentials(float *x, int64_t n, const float *sink, float scale, float softcap) {
    float unit = softcap > 0 ? softcap : scale;
    if (softcap > 0)
        for (int64_t i = 0; i < n; i++) x[i] = 2.0f * sigmoid(2.0f * scale / softcap * x[i]) - 1.0f;
    if (sink) x[n] = *sink / unit;
    return exponentials(x, n + (sink != NULL), unit * LOG2E);
}

static inline int64_t clamped(int64_t x, int64_t most) { return x < 0 ? 0 : x < most ? x : most; }

/* ---- vectors ---- */

#if defined __AVX512F__
enum { VECTOR = 64 }; /* bytes */
#elif defined __AVX__
enum { VECTOR = 32 };
#else
enum { VECTOR = 16 };
#endif
enum { LANES = VECTOR / 4, CHUNK = VECTOR / 2, AHEAD = 32 /* keys to prefetch */ };

typedef float lanes __attribute__((vector_size(VECTOR)));

/* CHUNK elements as two vectors of fp32. Their order does not matter, because they are only summed. */
typedef struct {
    lanes first, second;
} Chunk;

#ifdef FP32
typedef float unaligned __attribute__((vector_size(VECTOR), aligned(4), may_alias));

static inline Chunk load(const real *x) {
    return (Chunk){(lanes)*(const unaligned *)x, (lanes)*(const unaligned *)(x + LANES)};
}

static inline void store(real *x, lanes first, lanes second) {
    *(unaligned *)x = (unaligned)first;
    *(unaligned *)(x + LANES) = (unaligned)second;
}
#else
typedef uint32_t pairs __attribute__((vector_size(VECTOR), aligned(2), may_alias));

/* Return elements 0, 2, ... and elements 1, 3, ..., because this order needs no shuffle. */
static inline Chunk load(const real *x) {
    pairs bits = *(const pairs *)x;
    return (Chunk){(lanes)(bits << 16), (lanes)(bits & 0xffff0000u)};
}

static inline pairs rounded_bits(lanes x) {
    pairs bits = (pairs)x;
    return bits + 0x7fff + ((bits >> 16) & 1);
}

static inline void store(real *x, lanes first, lanes second) {
    *(pairs *)x = (rounded_bits(first) >> 16) | (rounded_bits(second) & 0xffff0000u);
}
#endif

/* ---- products with packed matrices ---- */

/* A packed matrix [n, k] consists of panels of WIDTH of its n rows. A panel is [words, WIDTH]: a word has one column of
   k, or two in bfloat16, because processors multiply pairs. So a product reads a panel from start to end, once for each
   TILE rows of the other matrix, and after the first time from the cache. Missing rows and columns are 0. With AMX, the
   words of STEP columns and half of a panel are one tile of the processor. */
#ifdef FP32
typedef float word;
enum { PAIR = 1 };
#else
typedef uint32_t word;
enum { PAIR = 2 };
#endif
#ifdef __AMX_BF16__
enum { VECTORS = 2, TILE_ROWS = 16, STEP = 32 };
#else
enum { VECTORS = 3 };
#endif
enum { WIDTH = VECTORS * LANES, TILE = VECTOR == 64 ? 8 : 4, BLOCK = 1 << 18 /* elements */, LINE = 64 };

typedef word words __attribute__((vector_size(VECTOR), aligned(2), may_alias));

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t parts_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

static inline word word_at(const real *x) {
    word y;
    memcpy(&y, x, sizeof y);
    return y;
}

/* Return a word of two columns. In fp32 it has only the first. */
static inline word joined(real first, real second) {
#ifdef FP32
    (void)second;
    return first;
#else
    return first | (word)second << 16;
#endif
}

/* Return sum + w * x for a column of a panel, and a word of a row. */
static INLINE lanes add_product(lanes sum, const words *w, word x) {
#if defined FP32
    return sum + *w * x;
#elif defined __AVX512BF16__
    __m512bh pairs = (__m512bh)_mm512_loadu_si512(w), pair = (__m512bh)_mm512_set1_epi32((int32_t)x);
    return (lanes)_mm512_dpbf16_ps((__m512)sum, pairs, pair);
#else
    sum += (lanes)(*w << 16) * wide((real)x);
    return sum + (lanes)(*w & 0xffff0000u) * wide((real)(x >> 16));
#endif
}

static void pack_panel(const real *x, word *panel, int64_t n, int64_t k) {
    for (int64_t c = 0; c < k / PAIR; c++)
        for (int64_t j = 0; j < WIDTH; j++) panel[c * WIDTH + j] = j < n ? word_at(x + j * k + c * PAIR) : 0;
}

/* Pack x [n, k]. k is even. */
void pack(const real *x, real *packed, int64_t n, int64_t k) {
    PARALLEL(n * k)
    for (int64_t p = 0; p < parts_of(n, WIDTH); p++)
        pack_panel(x + p * WIDTH * k, (word *)(packed + p * WIDTH * k), least(n - p * WIDTH, WIDTH), k);
}

/* Pack the transpose of x [k, n]. If k is odd, a column of zeros is added. */
static void pack_transposed(const real *x, word *packed, int64_t n, int64_t k) {
    for (int64_t start = 0; start < n; start += WIDTH)
        for (int64_t c = 0; c < k; c += PAIR, packed += WIDTH) {
            int64_t columns = least(n - start, WIDTH), is_pair = c + 1 < k;
            const real *first = x + c * n + start, *second = is_pair ? first + n : first;
            for (int64_t i = 0; i < columns; i++) packed[i] = joined(first[i], is_pair ? second[i] : 0);
            for (int64_t i = columns; i < WIDTH; i++) packed[i] = 0;
        }
}

/* y [rows, n] = x [rows, k] times a packed matrix [n, k], + bias unless it is NULL. With `adds`, y += scale * (x times
   the matrix), where each result is rounded first, as in separate operations. */
typedef struct {
    const real *x, *packed, *bias;
    real *y;
    int64_t n, k, x_stride, y_stride, adds;
    float scale;
} Product;

/* Write the sums [rows, WIDTH] of panel p for the rows of y from `row` on. */
static INLINE void write_sums(const Product *m, int64_t row, int64_t p, const float *sums, int64_t rows) {
    int64_t columns = least(m->n - p * WIDTH, WIDTH);
    real *y = m->y + row * m->y_stride + p * WIDTH;
    for (int64_t r = 0; r < rows; r++, sums += WIDTH, y += m->y_stride)
        if (m->adds)
            for (int64_t i = 0; i < columns; i++) y[i] = narrow(wide(y[i]) + rounded(rounded(sums[i]) * m->scale));
        else if (m->bias)
            for (int64_t i = 0; i < columns; i++) y[i] = narrow(sums[i] + wide(m->bias[p * WIDTH + i]));
        else if (columns == WIDTH)
            for (int64_t i = 0; i < WIDTH; i++) y[i] = narrow(sums[i]);
        else
            for (int64_t i = 0; i < columns; i++) y[i] = narrow(sums[i]);
}

static INLINE void multiply_tile(const Product *m, int64_t row, int64_t p, const char *next, int64_t ahead, int rows) {
    const real *x = m->x + row * m->x_stride;
    const word *panel = (const word *)m->packed + p * WIDTH * (m->k / PAIR);
    lanes sums[TILE][VECTORS] = {0};
    for (int64_t c = 0; c < m->k / PAIR; c++) {
        if (c < ahead) __builtin_prefetch(next + c * LINE, 0, 2); /* into the second-level cache */
        for (int r = 0; r < rows; r++) {
            word pair = word_at(x + r * m->x_stride + c * PAIR);
            for (int v = 0; v < VECTORS; v++)
                sums[r][v] = add_product(sums[r][v], (const words *)(panel + c * WIDTH + v * LANES), pair);
        }
    }
    float stored[TILE * WIDTH];
    memcpy(stored, sums, sizeof stored);
    write_sums(m, row, p, stored, rows);
}

#ifdef __AMX_BF16__
/* Tiles 0 and 1 are sums of `upper` rows x 16 columns, 2 and 3 of `lower` rows; 4 and 5 are these rows of x, 6 and 7 are
   of the panel. */
static void configure_tiles(int64_t upper, int64_t lower) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int t = 0; t < 8; t++) config.row_bytes[t] = LINE;
    config.rows[0] = config.rows[1] = config.rows[4] = (uint8_t)upper;
    config.rows[2] = config.rows[3] = config.rows[5] = (uint8_t)(lower ? lower : 1);
    config.rows[6] = config.rows[7] = TILE_ROWS;
    _tile_loadconfig(&config);
}

/* Multiply 1 to 32 rows by panel p. */
static INLINE void multiply_tiles(const Product *m, int64_t row, int64_t p, int64_t rows) {
    int64_t stride = m->x_stride * (int64_t)sizeof(real);
    const real *x = m->x + row * m->x_stride, *x_lower = x + TILE_ROWS * m->x_stride;
    const word *panel = (const word *)m->packed + p * WIDTH * (m->k / PAIR);
    float sums[2 * TILE_ROWS * WIDTH];
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t c = 0; c < m->k; c += STEP, panel += WIDTH * STEP / PAIR) {
        _tile_loadd(6, panel, WIDTH * sizeof(word));
        _tile_loadd(4, x + c, stride);
        _tile_loadd(7, panel + LANES, WIDTH * sizeof(word));
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (rows <= TILE_ROWS) continue;
        _tile_loadd(5, x_lower + c, stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, WIDTH * sizeof *sums);
    _tile_stored(1, sums + LANES, WIDTH * sizeof *sums);
    if (rows > TILE_ROWS) {
        _tile_stored(2, sums + TILE_ROWS * WIDTH, WIDTH * sizeof *sums);
        _tile_stored(3, sums + TILE_ROWS * WIDTH + LANES, WIDTH * sizeof *sums);
    }
    write_sums(m, row, p, sums, rows);
}

static void multiply_panel_by_tiles(const Product *m, int64_t first, int64_t end, int64_t p) {
    int64_t size = 2 * TILE_ROWS, rest = (end - first) % size, row = first;
    if (end - first >= size) configure_tiles(TILE_ROWS, TILE_ROWS);
    for (; row < end - rest; row += size) multiply_tiles(m, row, p, size);
    if (rest) {
        configure_tiles(least(rest, TILE_ROWS), rest - least(rest, TILE_ROWS));
        multiply_tiles(m, row, p, rest);
    }
    _tile_release();
}
#endif

/* Multiply rows [first, end) by panel p, and prefetch the next one of `panels`. */
static void multiply_panel(const Product *m, int64_t first, int64_t end, int64_t p, int64_t panels) {
#ifdef __AMX_BF16__
    if (m->k % STEP == 0) {
        multiply_panel_by_tiles(m, first, end, p);
        return;
    }
#endif
    int64_t size = WIDTH * m->k * (int64_t)sizeof(real), part = parts_of(size / LINE, parts_of(end - first, TILE));
    const char *next = (const char *)m->packed + (p + 1) * size;
    for (int64_t row = first; row < end; row += TILE, next += part * LINE) {
        int64_t ahead = p + 1 < panels ? part : 0;
        switch (end - row) {
        case 1: multiply_tile(m, row, p, next, ahead, 1); break;
        case 2: multiply_tile(m, row, p, next, ahead, 2); break;
        case 3: multiply_tile(m, row, p, next, ahead, 3); break;
#if defined __AVX512F__
        case 4: multiply_tile(m, row, p, next, ahead, 4); break;
        case 5: multiply_tile(m, row, p, next, ahead, 5); break;
        case 6: multiply_tile(m, row, p, next, ahead, 6); break;
        case 7: multiply_tile(m, row, p, next, ahead, 7); break;
#endif
        default: multiply_tile(m, row, p, next, ahead, TILE);
        }
    }
}

static void multiply(const Product *m, int64_t rows) {
    int64_t panels = parts_of(m->n, WIDTH), block = parts_of(BLOCK / m->k + 1, TILE) * TILE;
    for (int64_t first = 0; first < rows; first += block) {
        PARALLEL(least(rows, block) * m->n * m->k)
        for (int64_t p = 0; p < panels; p++) multiply_panel(m, first, least(first + block, rows), p, panels);
    }
}

/* y [rows, n] = x [rows, k] times a packed matrix [n, k], + bias unless it is NULL. */
void linear(const real *x, const real *packed, const real *bias, real *y, int64_t rows, int64_t n, int64_t k) {
    Product m = {x, packed, bias, y, .n = n, .k = k, .x_stride = k, .y_stride = n};
    multiply(&m, rows);
}

/* ---- attention of prefill and training ---- */

/* Overwrite scores over prefix [heads, rows, group, length, np], own [heads, rows, group, length, no] and, if given,
   sinks [heads, rows, group, length] with their common softmax. The query at i of [rows, length] sees the columns of
   [prefix | own] from starts[i] on (from the first if starts is not given), and the first limits[i] of own. Other
   columns become 0. */
void joint_softmax(real *prefix, real *own, float *sinks, const int32_t *starts, const int32_t *limits, int64_t heads,
                   int64_t rows, int64_t group, int64_t length, int64_t np, int64_t no, float scale, float softcap) {
    int64_t queries = heads * rows * group * length;
    PRAGMA(omp parallel if (queries * (np + no) > GRAIN)) {
        float *x = malloc((size_t)(np + no + 1 + PAD) * sizeof *x);
        PRAGMA(omp for schedule(static))
        for (int64_t r = 0; r < queries; r++) {
            int64_t i = r / (group * length) % rows * length + r % length;
            int64_t end = clamped(limits[i], no), start = starts ? clamped(starts[i], np + end) : 0;
            int64_t skipped = clamped(start, np), first = start - skipped, n = np - skipped, m = end - first;
            real *p = prefix + r * np, *o = own + r * no;
            widen_row(p + skipped, n, x);
            widen_row(o + first, m, x + n);
            float share = 1.0f / score_exponentials(x, n + m, sinks ? sinks + r : NULL, scale, softcap);
            memset(p, 0, (size_t)skipped * sizeof *p);
            memset(o, 0, (size_t)first * sizeof *o);
            narrow_row(x, n, share, p + skipped);
            narrow_row(x + n, m, share, o + first);
            memset(o + end, 0, (size_t)(no - end) * sizeof *o);
            if (sinks) sinks[r] = x[n + m] * share;
        }
        free(x);
    }
}

static void row_softmax_grad(real *grad, const real *probs, int64_t n, float delta, float scale) {
    for (int64_t i = 0; i < n; i++) grad[i] = narrow(wide(probs[i]) * (wide(grad[i]) - delta) * scale);
}

/* Overwrite gradients of probabilities with gradients of scores, probability * (grad - delta) * scale. delta [rows] is
   the sum of probability * grad over a row of both parts. */
void joint_softmax_backward(real *prefix_grad, real *own_grad, const real *prefix, const real *own, const float *delta,
                            int64_t rows, int64_t np, int64_t no, float scale) {
    PARALLEL(rows * (np + no))
    for (int64_t r = 0; r < rows; r++) {
        row_softmax_grad(prefix_grad + r * np, prefix + r * np, np, delta[r], scale);
        row_softmax_grad(own_grad + r * no, own + r * no, no, delta[r], scale);
    }
}

/* out[r] = dot product of row r of a and row r of b. */
void row_dot(const real *a, const real *b, float *out, int64_t rows, int64_t d) {
    PARALLEL(rows * d)
    for (int64_t r = 0; r < rows; r++) {
        float sum = 0;
        for (int64_t i = 0; i < d; i++) sum += wide(a[r * d + i]) * wide(b[r * d + i]);
        out[r] = sum;
    }
}

/* out [heads, rows, group, length, d] = x [n, heads * group, d] at positions index [rows, length]. `stride` is that of
   the tokens of x. If `valid` [rows, length] is given, zeros are written where it is 0. */
void gather_heads(const real *x, const int64_t *index, const uint8_t *valid, real *out, int64_t heads, int64_t rows,
                  int64_t length, int64_t group, int64_t d, int64_t stride) {
    PARALLEL(heads * rows * group * length * d)
    for (int64_t r = 0; r < heads * rows * group; r++) {
        int64_t first = (r / group) % rows * length, head = r / (rows * group) * group + r % group;
        for (int64_t i = 0; i < length; i++) {
            real *to = out + (r * length + i) * d;
            if (valid && !valid[first + i])
                memset(to, 0, (size_t)d * sizeof *to);
            else
                memcpy(to, x + index[first + i] * stride + head * d, (size_t)d * sizeof *to);
        }
    }
}

/* out [n, heads * group, d] at positions[i] = x [heads, rows, group, length, d] at place[i] of [rows, length]. */
void scatter_heads(const real *x, const int64_t *positions, const int64_t *places, real *out, int64_t count,
                   int64_t heads, int64_t rows, int64_t length, int64_t group, int64_t d) {
    PARALLEL(count * heads * group * d)
    for (int64_t i = 0; i < count; i++) {
        int64_t row = places[i] / length, column = places[i] % length;
        for (int64_t head = 0; head < heads * group; head++) {
            int64_t r = (head / group * rows + row) * group + head % group;
            memcpy(out + (positions[i] * heads * group + head) * d, x + (r * length + column) * d,
                   (size_t)d * sizeof *out);
        }
    }
}

/* total [n, heads, d] at positions index[i], which may repeat, += x [heads, count, d]. One thread adds COLUMNS columns of
   a head, in the order of x. */
void add_heads(const real *x, const int64_t *index, float *total, int64_t heads, int64_t count, int64_t d) {
    int64_t parts = (d + COLUMNS - 1) / COLUMNS;
    PARALLEL(heads * count * d)
    for (int64_t part = 0; part < heads * parts; part++) {
        int64_t head = part / parts, start = part % parts * COLUMNS, stop = start + COLUMNS < d ? start + COLUMNS : d;
        for (int64_t i = 0; i < count; i++) {
            const real *from = x + (head * count + i) * d;
            float *to = total + (index[i] * heads + head) * d;
            for (int64_t c = start; c < stop; c++) to[c] += wide(from[c]);
        }
    }
}

/* ---- RMSNorm ---- */

/* y = weight * real(x / rms(x)), rstd = 1 / rms(x). If `residual` is given, x + residual is written to `sums` and
   normalized in place of x. */
void rms_norm(const real *x, const real *residual, real *sums, const real *weight, real *y, float *rstd, int64_t rows,
              int64_t d, float eps) {
    PARALLEL(rows * d)
    for (int64_t r = 0; r < rows; r++) {
        const real *in = x + r * d;
        real *out = y + r * d;
        if (residual) {
            for (int64_t i = 0; i < d; i++) sums[r * d + i] = narrow(wide(in[i]) + wide(residual[r * d + i]));
            in = sums + r * d;
        }
        float squares = 0;
        for (int64_t i = 0; i < d; i++) squares += wide(in[i]) * wide(in[i]);
        float scale = 1.0f / sqrtf(squares / (float)d + eps);
        for (int64_t i = 0; i < d; i++) out[i] = narrow(wide(weight[i]) * rounded(wide(in[i]) * scale));
        rstd[r] = scale;
    }
}

/* dx = rstd * (g - xhat * mean(g * xhat)) + grad_sum, where g = grad * weight and xhat = x * rstd. If `partial`
   [parts, d] is given, the gradient of the weight, grad * xhat summed over rows, is added to it: one partial sum for
   each of `parts` ranges of rows. */
void rms_norm_backward(const real *grad, const real *grad_sum, const real *x, const real *weight, const float *rstd,
                       real *dx, float *partial, int64_t parts, int64_t rows, int64_t d) {
    PARALLEL(rows * d)
    for (int64_t part = 0; part < parts; part++)
        for (int64_t r = rows * part / parts; r < rows * (part + 1) / parts; r++) {
            const real *g = grad + r * d, *in = x + r * d;
            real *out = dx + r * d;
            float scale = rstd[r], dot = 0;
            for (int64_t i = 0; i < d; i++) dot += wide(g[i]) * wide(weight[i]) * wide(in[i]);
            dot *= scale * scale / (float)d;
            for (int64_t i = 0; i < d; i++) {
                float through = grad_sum ? wide(grad_sum[r * d + i]) : 0.0f;
                out[i] = narrow(scale * (wide(g[i]) * wide(weight[i]) - wide(in[i]) * dot) + through);
            }
            if (partial)
                for (int64_t i = 0; i < d; i++) partial[part * d + i] += wide(g[i]) * rounded(wide(in[i]) * scale);
        }
}

/* ---- SwiGLU ---- */

/* y = silu(gate) * up. The strides are those of the rows of gate and up. */
void swiglu(const real *gate, const real *up, real *y, int64_t rows, int64_t d, int64_t gate_stride,
            int64_t up_stride) {
    PARALLEL(rows * d)
    for (int64_t r = 0; r < rows; r++) {
        const real *g = gate + r * gate_stride, *u = up + r * up_stride;
        real *out = y + r * d;
        for (int64_t i = 0; i < d; i++) out[i] = narrow(rounded(wide(g[i]) * sigmoid(wide(g[i]))) * wide(u[i]));
    }
}

void swiglu_backward(const real *grad, const real *gate, const real *up, real *dgate, real *dup, int64_t rows,
                     int64_t d, int64_t gate_stride, int64_t up_stride) {
    PARALLEL(rows * d)
    for (int64_t r = 0; r < rows; r++) {
        const real *dy = grad + r * d, *g = gate + r * gate_stride, *u = up + r * up_stride;
        real *dg = dgate + r * d, *du = dup + r * d;
        for (int64_t i = 0; i < d; i++) {
            float x = wide(g[i]), s = sigmoid(x);
            du[i] = narrow(wide(dy[i]) * rounded(x * s));
            dg[i] = narrow(wide(dy[i]) * wide(u[i]) * s * (1.0f + x * (1.0f - s)));
        }
    }
}

/* ---- rotary position embedding ---- */

static void rotate(const real *x, const float *cosine, const float *sine, real *y, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float x1 = wide(x[i]), x2 = wide(x[i + half]);
        y[i] = narrow(x1 * cosine[i] - x2 * sine[i]);
        y[i + half] = narrow(x2 * cosine[i] + x1 * sine[i]);
    }
}

/* Rotate the halves (x1, x2) of each head to (x1 cos - x2 sin, x2 cos + x1 sin). The backward pass passes sign = -1.
   cosine and sine [rows, d] are fp32 if `fp32` is not 0, else real. Both halves of their rows are equal, and only the
   first is read. d is at most MOST_DIM. */
void rope(const real *x, const void *cosine, const void *sine, real *y, int64_t rows, int64_t heads, int64_t d,
          int64_t stride, int64_t fp32, float sign) {
    int64_t half = d / 2;
    PARALLEL(rows * heads * d)
    for (int64_t r = 0; r < rows; r++) {
        float c[MOST_DIM / 2], s[MOST_DIM / 2];
        for (int64_t i = 0; i < half; i++) {
            c[i] = fp32 ? ((const float *)cosine)[r * d + i] : wide(((const real *)cosine)[r * d + i]);
            s[i] = sign * (fp32 ? ((const float *)sine)[r * d + i] : wide(((const real *)sine)[r * d + i]));
        }
        for (int64_t h = 0; h < heads; h++) rotate(x + r * stride + h * d, c, s, y + (r * heads + h) * d, half);
    }
}

/* ---- decode attention: one step of many sequences over a KV cache ---- */

/* What one sequence sees: keys [n, d], values [n, dv], all but the first `skipped` of np prefix columns, and sinks [group]
   or NULL. The buffer for the weights [queries, prefix columns, n] has a row stride. */
typedef struct {
    const real *keys, *values;
    const float *sinks;
    int64_t n, np, prefix_stride, skipped, stride;
    int64_t chunks, value_chunks; /* d is CHUNK * chunks, dv is CHUNK * value_chunks */
    float scale, softcap, *weights;
} Sequence;

/* The next three functions handle 1 to 4 queries. They are inlined with a constant number of queries, so that all
   sums stay in registers. */

static INLINE void dot_keys(const Sequence *s, const lanes *q, int queries) {
    for (int64_t j = 0; j < s->n; j++) {
        lanes sums[4] = {0};
        for (int64_t c = 0; c < s->chunks; c++) {
            const real *key = s->keys + (j * s->chunks + c) * CHUNK;
            __builtin_prefetch(key + AHEAD * s->chunks * CHUNK);
            if (c < s->value_chunks) /* into the second-level cache */
                __builtin_prefetch(s->values + (j * s->value_chunks + c) * CHUNK, 0, 2);
            Chunk k = load(key);
            for (int g = 0; g < queries; g++) {
                sums[g] += q[(g * s->chunks + c) * 2] * k.first;
                sums[g] += q[(g * s->chunks + c) * 2 + 1] * k.second;
            }
        }
        for (int g = 0; g < queries; g++) {
            float sum = 0;
            for (int i = 0; i < LANES; i++) sum += sums[g][i];
            s->weights[g * s->stride + s->np - s->skipped + j] = sum;
        }
    }
}

static INLINE void add_values(const Sequence *s, const float *scales, real *out, int queries) {
    const float *weights = s->weights + s->np - s->skipped;
    for (int64_t c = 0; c < s->value_chunks; c++) {
        lanes first[4] = {0}, second[4] = {0};
        for (int64_t j = 0; j < s->n; j++) {
            Chunk v = load(s->values + (j * s->value_chunks + c) * CHUNK);
            for (int g = 0; g < queries; g++) {
                first[g] += weights[g * s->stride + j] * v.first;
                second[g] += weights[g * s->stride + j] * v.second;
            }
        }
        for (int g = 0; g < queries; g++)
            store(out + (g * s->value_chunks + c) * CHUNK, first[g] * scales[g], second[g] * scales[g]);
    }
}

static INLINE void decode(const Sequence *s, const real *q, real *prefix, const float *sinks, real *out, int queries) {
    int64_t seen = s->np - s->skipped;
    lanes split[4 * MOST_DIM / LANES];
    float scales[4];
    for (int64_t i = 0; i < queries * s->chunks; i++) {
        Chunk part = load(q + CHUNK * i);
        split[2 * i] = part.first;
        split[2 * i + 1] = part.second;
    }
    dot_keys(s, split, queries);
    for (int g = 0; g < queries; g++) {
        float *weights = s->weights + g * s->stride;
        real *p = prefix + g * s->prefix_stride;
        widen_row(p + s->skipped, seen, weights);
        scales[g] = 1.0f / score_exponentials(weights, seen + s->n, sinks ? sinks + g : NULL, s->scale, s->softcap);
        memset(p, 0, (size_t)s->skipped * sizeof *p);
        narrow_row(weights, seen, scales[g], p + s->skipped);
    }
    add_values(s, scales, out, queries);
}

static void decode_sequence(const Sequence *s, const real *q, real *prefix, real *out, int64_t group) {
    int64_t d = s->chunks * CHUNK, dv = s->value_chunks * CHUNK, np = s->prefix_stride;
    for (int64_t g = 0; g < group; g += 4) {
        const float *sinks = s->sinks ? s->sinks + g : NULL;
        switch (group - g) {
        case 1: decode(s, q + g * d, prefix + g * np, sinks, out + g * dv, 1); break;
        case 2: decode(s, q + g * d, prefix + g * np, sinks, out + g * dv, 2); break;
        case 3: decode(s, q + g * d, prefix + g * np, sinks, out + g * dv, 3); break;
        default: decode(s, q + g * d, prefix + g * np, sinks, out + g * dv, 4);
        }
    }
}

/* Attention of one query position per row. q is [heads, rows, group, d], out [heads, rows, group, dv], prefix [heads,
   rows, group, np], and keys [heads, slots, cap, d] and values [heads, slots, cap, dv] have strides over heads and slots.
   Row r attends to prefix and the first lengths[r] tokens of slot slots[r], but not to the first starts[r] of all of
   these if `starts` is given. `sinks` [heads, group] are scores of tokens without a value, or NULL. prefix holds scores of
   prefix tokens and gets their probabilities; out gets the part of the result from keys and values. A row of length 0
   gets zeros in both. d and dv are multiples of 32 and at most MOST_DIM. */
void decode_attention(const real *q, real *prefix, const real *keys, const real *values, const int32_t *slots,
                      const int32_t *starts, const int32_t *lengths, const float *sinks, real *out, int64_t heads,
                      int64_t rows, int64_t group, int64_t d, int64_t dv, int64_t np, int64_t key_head_stride,
                      int64_t key_slot_stride, int64_t value_head_stride, int64_t value_slot_stride, float scale,
                      float softcap) {
    int64_t longest = 0;
    for (int64_t r = 0; r < rows; r++) longest = lengths[r] > longest ? lengths[r] : longest;
    int64_t stride = np + longest + 1 + PAD;
    PRAGMA(omp parallel if (heads * rows * group * stride > GRAIN)) {
        Sequence s = {.np = np, .prefix_stride = np, .chunks = d / CHUNK, .value_chunks = dv / CHUNK, .stride = stride};
        s.scale = scale, s.softcap = softcap;
        s.weights = malloc((size_t)(4 * stride) * sizeof(float));
        PRAGMA(omp for schedule(dynamic))
        for (int64_t i = 0; i < heads * rows; i++) {
            int64_t h = i / rows, r = i % rows;
            real *p = prefix + i * group * np, *o = out + i * group * dv;
            int64_t start = starts ? clamped(starts[r], np + lengths[r]) : 0;
            s.skipped = clamped(start, np), start -= s.skipped, s.n = lengths[r] - start;
            s.keys = keys + h * key_head_stride + slots[r] * key_slot_stride + start * d;
            s.values = values + h * value_head_stride + slots[r] * value_slot_stride + start * dv;
            s.sinks = sinks ? sinks + h * group : NULL;
            if (lengths[r] > 0) {
                decode_sequence(&s, q + i * group * d, p, o, group);
            } else {
                memset(o, 0, (size_t)(group * dv) * sizeof *o);
                memset(p, 0, (size_t)(group * np) * sizeof *p);
            }
        }
        free(s.weights);
    }
}

/* ---- the layers of a decoding pass ---- */

/* Linear layers with the same input, with packed weights [outputs, inputs]. If `rank` is not 0, their adapters (LoRA)
   add scale * (up [outputs, rank] times (down [rank, inputs] times x)). */
typedef struct {
    const real *weight, *bias, *down, *up;
    int64_t inputs, outputs, rank;
    double scale;
} Linear;

/* A decoder layer as in Llama: attention with rotary embedding, and SwiGLU, each after an RMSNorm. `query_norm` and
   `key_norm` [dim], `out.bias` and the like may be NULL. Keys and values [key heads, slots, capacity, dim] are the cache.
   If `window` is not 0, a token sees itself and the window - 1 tokens before it. */
typedef struct {
    const real *norm, *query_norm, *key_norm, *mlp_norm;
    Linear qkv, out, gate_up, down;
    real *keys, *values;
    int64_t window;
    double scale, eps;
} Layer;

/* Adjacent rows [start, stop) of a pass with the same prefix of `length` tokens. prefix [layers, 2] are its keys and
   values [key heads, length, dim] at each layer. */
typedef struct {
    int64_t start, stop, length;
    const real *const *prefix;
} Group;

/* A pass over one token of each row. It stores the token's keys and values at columns[row] of slots[row], and
   attends to them and to the tokens before it. cosine and sine [rows, dim] are those of rotary embedding. */
typedef struct {
    const Layer *layers;
    const Group *groups;
    const real *cosine, *sine;
    const int64_t *slots, *columns;
    int64_t num_layers, num_groups, rows, width, intermediate, heads, group, dim, num_slots, capacity;
} Pass;

enum { CHUNK_ROWS = 8 /* rows of a group that one thread computes */ };

/* Buffers of a pass. */
typedef struct {
    real *normed, *qkv, *low_rank, *queries, *attended, *joined, *projected, *gate_up, *gated;
    float *rstd;
} Buffers;

static void apply_linear(const Linear *layer, const real *x, real *y, real *low_rank, int64_t rows) {
    linear(x, layer->weight, layer->bias, y, rows, layer->outputs, layer->inputs);
    if (!layer->rank) return;
    linear(x, layer->down, NULL, low_rank, rows, layer->rank, layer->inputs);
    Product m = {low_rank, layer->up, NULL, y, .n = layer->outputs, .k = layer->rank, .x_stride = layer->rank};
    m.y_stride = layer->outputs, m.adds = 1, m.scale = (float)layer->scale;
    multiply(&m, rows);
}

static void normalize_head(const real **x, const real *weight, real *y, int64_t d, float eps) {
    float rstd;
    if (!weight) return;
    rms_norm(*x, NULL, NULL, weight, y, &rstd, 1, d, eps);
    *x = y;
}

/* Split qkv [rows, heads * (group + 2), dim] into queries [heads, rows, group, dim] and keys and values of the cache. */
static void split_heads(const Pass *pass, const Layer *layer, const Buffers *b) {
    int64_t d = pass->dim, half = d / 2, query_heads = pass->heads * pass->group;
    float eps = (float)layer->eps;
    PARALLEL(pass->rows * layer->qkv.outputs)
    for (int64_t r = 0; r < pass->rows; r++) {
        const real *x = b->qkv + r * layer->qkv.outputs, *in;
        float c[MOST_DIM], s[MOST_DIM];
        real normed[MOST_DIM];
        widen_row(pass->cosine + r * d, half, c);
        widen_row(pass->sine + r * d, half, s);
        for (int64_t h = 0; h < query_heads; h++, x += d) {
            int64_t place = (h / pass->group * pass->rows + r) * pass->group + h % pass->group;
            in = x;
            normalize_head(&in, layer->query_norm, normed, d, eps);
            rotate(in, c, s, b->queries + place * d, half);
        }
        for (int64_t h = 0; h < pass->heads; h++, x += d) {
            int64_t place = ((h * pass->num_slots + pass->slots[r]) * pass->capacity + pass->columns[r]) * d;
            in = x;
            normalize_head(&in, layer->key_norm, normed, d, eps);
            rotate(in, c, s, layer->keys + place, half);
            memcpy(layer->values + place, x + pass->heads * d, (size_t)d * sizeof *x);
        }
    }
}

/* Buffers of a thread's attention: packed keys or values of a prefix, scores of all queries, weights of four. */
typedef struct {
    real *packed, *scores;
    float *weights;
} Scratch;

/* Attention of a key head for rows [first, end) of a group. */
static void attend_rows(const Pass *pass, int64_t l, const Buffers *b, const Group *g, int64_t h, int64_t first,
                        int64_t end, int64_t stride, const Scratch *scratch) {
    const Layer *layer = pass->layers + l;
    int64_t d = pass->dim, np = g->length, padded = parts_of(np, PAIR) * PAIR, size = pass->group * d;
    const real *queries = b->queries + (h * pass->rows + first) * size;
    real *out = b->attended + (h * pass->rows + first) * size;
    if (np) {
        const real *keys = g->prefix[2 * l] + h * np * d;
        for (int64_t p = 0; p < parts_of(np, WIDTH); p++) {
            int64_t start = p * WIDTH;
            pack_panel(keys + start * d, (word *)(scratch->packed + start * d), least(np - start, WIDTH), d);
        }
        Product m = {queries, scratch->packed, NULL, scratch->scores, .n = np, .k = d, .x_stride = d};
        m.y_stride = padded;
        for (int64_t p = 0; p < parts_of(np, WIDTH); p++) multiply_panel(&m, 0, (end - first) * pass->group, p, 0);
    }
    Sequence s = {.np = np, .prefix_stride = padded, .chunks = d / CHUNK, .value_chunks = d / CHUNK, .stride = stride};
    s.scale = (float)layer->scale, s.weights = scratch->weights;
    for (int64_t r = first; r < end; r++) {
        int64_t length = pass->columns[r] + 1, slot = (h * pass->num_slots + pass->slots[r]) * pass->capacity;
        int64_t start = layer->window ? clamped(np + length - layer->window, np + length) : 0;
        s.skipped = least(start, np), start -= s.skipped, s.n = length - start;
        s.keys = layer->keys + (slot + start) * d, s.values = layer->values + (slot + start) * d;
        int64_t i = r - first;
        real *scores = scratch->scores + i * pass->group * padded;
        decode_sequence(&s, queries + i * size, scores, out + i * size, pass->group);
    }
    if (np) {
        int64_t count = (end - first) * pass->group;
        for (int64_t i = 0; np < padded && i < count; i++) scratch->scores[i * padded + np] = 0;
        pack_transposed(g->prefix[2 * l + 1] + h * np * d, (word *)scratch->packed, d, np);
        Product m = {scratch->scores, scratch->packed, NULL, out, .n = d, .k = padded, .x_stride = padded};
        m.y_stride = d, m.adds = 1, m.scale = 1.0f;
        for (int64_t p = 0; p < parts_of(d, WIDTH); p++) multiply_panel(&m, 0, count, p, 0);
    }
}

static void attend_pass(const Pass *pass, int64_t l, const Buffers *b) {
    int64_t longest = 0, prefix = 0, chunks = 0, d = pass->dim;
    for (int64_t r = 0; r < pass->rows; r++) longest = pass->columns[r] >= longest ? pass->columns[r] + 1 : longest;
    for (int64_t g = 0; g < pass->num_groups; g++) {
        const Group *group = pass->groups + g;
        prefix = group->length > prefix ? group->length : prefix;
        chunks += parts_of(group->stop - group->start, CHUNK_ROWS);
    }
    int64_t stride = prefix + longest + 1 + PAD, columns = (parts_of(prefix, WIDTH) + 1) * WIDTH;
    PRAGMA(omp parallel) {
        Scratch scratch = {malloc((size_t)(columns * (d + WIDTH)) * sizeof(real)),
                           malloc((size_t)(CHUNK_ROWS * pass->group * (prefix + 1)) * sizeof(real)),
                           malloc((size_t)(4 * stride) * sizeof(float))};
        PRAGMA(omp for schedule(dynamic))
        for (int64_t i = 0; i < chunks * pass->heads; i++) {
            const Group *group = pass->groups;
            int64_t chunk = i / pass->heads, in_group;
            while (chunk >= (in_group = parts_of(group->stop - group->start, CHUNK_ROWS))) chunk -= in_group, group++;
            int64_t first = group->start + chunk * CHUNK_ROWS, end = least(first + CHUNK_ROWS, group->stop);
            attend_rows(pass, l, b, group, i % pass->heads, first, end, stride, &scratch);
        }
        free(scratch.packed), free(scratch.scores), free(scratch.weights);
    }
    int64_t size = pass->group * d;
    for (int64_t r = 0; r < pass->rows; r++) /* to [rows, heads, group * dim] */
        for (int64_t h = 0; h < pass->heads; h++)
            memcpy(b->joined + (r * pass->heads + h) * size, b->attended + (h * pass->rows + r) * size,
                   (size_t)size * sizeof(real));
}

/* Overwrite the hidden states [rows, width] of a pass with the output of the last layer. */
void decode_layers(real *hidden, const Pass *pass) {
    int64_t rows = pass->rows, d = pass->width, queries = pass->heads * pass->group * pass->dim, rank = 0;
    for (int64_t l = 0; l < pass->num_layers; l++) {
        const Layer *layer = pass->layers + l;
        const Linear *each[] = {&layer->qkv, &layer->out, &layer->gate_up, &layer->down};
        for (int i = 0; i < 4; i++) rank = each[i]->rank > rank ? each[i]->rank : rank;
    }
    int64_t sizes[] = {d, pass->layers->qkv.outputs, rank, queries, queries, queries, d, 2 * pass->intermediate,
                       pass->intermediate};
    int64_t total = 0;
    for (int i = 0; i < 9; i++) total += rows * sizes[i];
    real *memory = malloc((size_t)total * sizeof *memory), *place[9], *next = memory;
    for (int i = 0; i < 9; i++) place[i] = next, next += rows * sizes[i];
    Buffers b = {place[0], place[1], place[2], place[3], place[4], place[5], place[6], place[7], place[8],
                 malloc((size_t)rows * sizeof(float))};
    for (int64_t l = 0; l < pass->num_layers; l++) {
        const Layer *layer = pass->layers + l;
        float eps = (float)layer->eps;
        rms_norm(hidden, NULL, NULL, layer->norm, b.normed, b.rstd, rows, d, eps);
        apply_linear(&layer->qkv, b.normed, b.qkv, b.low_rank, rows);
        split_heads(pass, layer, &b);
        attend_pass(pass, l, &b);
        apply_linear(&layer->out, b.joined, b.projected, b.low_rank, rows);
        rms_norm(b.projected, hidden, hidden, layer->mlp_norm, b.normed, b.rstd, rows, d, eps);
        apply_linear(&layer->gate_up, b.normed, b.gate_up, b.low_rank, rows);
        swiglu(b.gate_up, b.gate_up + pass->intermediate, b.gated, rows, pass->intermediate, 2 * pass->intermediate,
               2 * pass->intermediate);
        apply_linear(&layer->down, b.gated, b.projected, b.low_rank, rows);
        for (int64_t i = 0; i < rows * d; i++) hidden[i] = narrow(wide(hidden[i]) + wide(b.projected[i]));
    }
    free(memory), free(b.rstd);
}

/* ---- log-probabilities ---- */

#define BELOW_ONE 0x1.fffffep-1f

enum { PARTS = 64 };

/* Sums over a row of logits x, where e = 2^t and t = a * (x - max). The columns are divided into PARTS parts. A part
   is summed in fp32, the sums of the parts in double. */
typedef struct {
    float max;
    int64_t width;                  /* columns per part; the last parts may be empty */
    double sum, sum_t, sums[PARTS]; /* of e, of e * t, of e in each part */
} Total;

static Total total_of(const real *x, int64_t n, float a) {
    float max = LOWEST;
    for (int64_t i = 0; i < n; i++) max = wide(x[i]) > max ? wide(x[i]) : max;
    Total total = {.max = max, .width = (n + PARTS * PAD - 1) / (PARTS * PAD) * PAD};
    for (int64_t part = 0; part < PARTS; part++) {
        int64_t start = part * total.width, stop = start + total.width < n ? start + total.width : n;
        float sum = 0, sum_t = 0;
        for (int64_t i = start; i < stop; i++) {
            float t = a * (wide(x[i]) - max), e = pow2(t);
            sum += e;
            sum_t += e * (t < FLOOR ? FLOOR : t);
        }
        total.sum += total.sums[part] = sum;
        total.sum_t += sum_t;
    }
    return total;
}

/* Compute the log-probability of the target and the entropy, for each row of logits [rows, n] / temperature. */
void token_logprobs(const real *logits, const int64_t *targets, float *logprobs, float *entropy, int64_t rows,
                    int64_t n, float temperature) {
    PARALLEL(rows * n)
    for (int64_t r = 0; r < rows; r++) {
        const real *x = logits + r * n;
        Total total = total_of(x, n, LOG2E / temperature);
        double log_sum = log(total.sum);
        logprobs[r] = (float)((wide(x[targets[r]]) - total.max) / temperature - log_sum);
        entropy[r] = (float)(log_sum - total.sum_t / total.sum / LOG2E);
    }
}

/* Overwrite logits with their gradient, grad * (onehot - probability) / temperature. */
void token_logprobs_backward(real *logits, const int64_t *targets, const float *logprobs, const float *grad,
                             int64_t rows, int64_t n, float temperature) {
    PARALLEL(rows * n)
    for (int64_t r = 0; r < rows; r++) {
        real *x = logits + r * n;
        float a = LOG2E / temperature, slope = grad[r] / temperature, target = wide(x[targets[r]]);
        float log_sum = a * target - LOG2E * logprobs[r]; /* to base 2 */
        for (int64_t i = 0; i < n; i++) x[i] = narrow(-slope * pow2(a * wide(x[i]) - log_sum));
        x[targets[r]] = narrow(slope * (1.0f - pow2(a * target - log_sum)));
    }
}

/* ---- sampling ---- */

/* Return the first column at which the running sum of e exceeds uniform * total, among those with t >= FLOOR. */
static int64_t drawn(const real *x, int64_t n, const Total *total, float a, float uniform) {
    double left = (uniform < BELOW_ONE ? uniform : BELOW_ONE) * total->sum;
    int64_t part = 0, last = 0;
    while (part < PARTS - 1 && left >= total->sums[part]) left -= total->sums[part++];
    for (int64_t start = part * total->width; start < n; start += PAD) {
        int64_t size = n - start < PAD ? n - start : PAD;
        float t[PAD], e[PAD];
        for (int64_t i = 0; i < size; i++) t[i] = a * (wide(x[start + i]) - total->max), e[i] = pow2(t[i]);
        for (int64_t i = 0; i < size; i++) {
            if (t[i] < FLOOR) continue;
            last = start + i;
            left -= e[i];
            if (left < 0) return last;
        }
    }
    return last;
}

/* The columns with e >= min_p. */
typedef struct {
    int32_t *columns; /* the first `room` of them, if it is not NULL */
    int64_t room, count;
    double sum; /* of e */
} Likely;

/* Return the first column at which the running sum of e exceeds uniform * total, where sum and total include only the
   likely columns. Such columns are few, so blocks without one are skipped. A logit below LOWEST is never likely. */
static int64_t drawn_of_likely(const real *x, int64_t n, float max, float a, float min_p, float uniform,
                               Likely *likely) {
    float lowest = max + log2f(min_p) / a;
    int64_t last = 0;
    double left = 0;
    lowest = lowest > LOWEST ? lowest : LOWEST;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t start = 0; start < n; start += PAD) {
            int64_t stop = start + PAD < n ? start + PAD : n;
            float most = LOWEST;
            for (int64_t i = start; i < stop; i++) most = wide(x[i]) > most ? wide(x[i]) : most;
            for (int64_t i = start; most >= lowest && i < stop; i++) {
                if (wide(x[i]) < lowest) continue;
                float e = pow2(a * (wide(x[i]) - max));
                if (pass == 0) {
                    if (likely->columns && likely->count < likely->room) likely->columns[likely->count] = (int32_t)i;
                    likely->count++;
                    likely->sum += e;
                } else {
                    last = i;
                    left -= e;
                    if (left < 0) return last;
                }
            }
        }
        left = (uniform < BELOW_ONE ? uniform : BELOW_ONE) * likely->sum;
    }
    return last;
}

static int64_t argmax(const real *x, int64_t n, float max) {
    int64_t i = 0;
    while (i < n - 1 && wide(x[i]) < max) i++;
    return i;
}

static int64_t sampled(const real *x, int64_t n, const Total *total, float temperature, float min_p, float uniform) {
    if (temperature == 0) return argmax(x, n, total->max);
    float a = LOG2E / temperature;
    Likely likely = {0};
    return min_p > 0 ? drawn_of_likely(x, n, total->max, a, min_p, uniform, &likely) : drawn(x, n, total, a, uniform);
}

/* Sample a token from each row of logits [rows, n] / temperature. Tokens are excluded if their probability is below
   min_p times that of the most likely token. Temperature 0 selects the argmax. logprobs are those of the tokens without
   min_p, at temperature 1 if the temperature is 0. */
void sample(const real *logits, const float *uniforms, int64_t *tokens, float *logprobs, int64_t rows, int64_t n,
            float temperature, float min_p) {
    PARALLEL(rows * n)
    for (int64_t r = 0; r < rows; r++) {
        const real *x = logits + r * n;
        float scale = temperature > 0 ? 1.0f / temperature : 1.0f;
        Total total = total_of(x, n, scale * LOG2E);
        tokens[r] = sampled(x, n, &total, temperature, min_p, uniforms[r]);
        logprobs[r] = (float)((wide(x[tokens[r]]) - total.max) * scale - log(total.sum));
    }
}

/* Sample like `sample`, with logprobs normalized over the tokens that min_p keeps. counts [rows] are the numbers of these
   tokens, and kept [rows, room] the first of them. */
void sample_likely(const real *logits, const float *uniforms, int64_t *tokens, float *logprobs, int64_t *counts,
                   int32_t *kept, int64_t rows, int64_t n, int64_t room, float temperature, float min_p) {
    PARALLEL(rows * n)
    for (int64_t r = 0; r < rows; r++) {
        const real *x = logits + r * n;
        float max = LOWEST;
        for (int64_t i = 0; i < n; i++) max = wide(x[i]) > max ? wide(x[i]) : max;
        Likely likely = {kept + r * room, room, 0, 0};
        tokens[r] = drawn_of_likely(x, n, max, LOG2E / temperature, min_p, uniforms[r], &likely);
        logprobs[r] = (float)((wide(x[tokens[r]]) - max) / temperature - log(likely.sum));
        counts[r] = likely.count;
    }
}
