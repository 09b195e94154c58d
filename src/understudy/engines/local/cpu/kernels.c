/* Kernels for CPUs: fused pointwise operations, products with packed weights, attention, and the layers of a decoding
   pass. kernels.py and fused_decoding.py call them. torch computes all other products.
   Tensors are bfloat16, or float32 if FP32 is defined. NO_AMX is defined if the process may not use AMX.

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
#else
typedef uint16_t real; /* bfloat16 */
#endif

#if defined __AMX_BF16__ && defined __AVX512F__ && !defined FP32 && !defined NO_AMX
#define AMX
#endif
#if defined __AVX512BF16__ || defined AMX
#include <immintrin.h>
#endif

#define LOG2E 1.44269504088896341f
#define LOWEST -1e30f
#define FLOOR -100.0f
#define INLINE inline __attribute__((always_inline))
#define ALIGNED _Alignas(64) /* to lines of the cache: tiles are loaded from what was just stored */
#define PRAGMA(text) _Pragma(#text)
#define PARALLEL(work) PRAGMA(omp parallel for schedule(static) if ((work) > GRAIN))

enum { PAD = 32, MOST_DIM = 256, GRAIN = 32768 /* minimum number of elements for a parallel loop */ };

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

/* Return memory that begins with a line of the cache: vectors and tiles that cross lines take longer. */
static void *allocate(int64_t count, size_t size) {
    return aligned_alloc(64, ((size_t)count * size + 63) / 64 * 64);
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
   words of STEP columns and half of a panel are one tile of the processor; other products are vectorized. */
#ifdef FP32
typedef float word;
enum { PAIR = 1 };
#else
typedef uint32_t word;
enum { PAIR = 2 };
#endif
#ifdef AMX
enum { VECTORS = 2, TILE_ROWS = 16, STEP = 32 };
#else
enum { VECTORS = 3, STEP = PAIR };
#endif
enum { WIDTH = VECTORS * LANES, TILE = VECTOR == 64 ? 8 : 4, LINE = 64 };
enum { BLOCK = 1 << 18 /* elements that stay in a cache */, ROUND = 32 /* of its rows, all kinds of tiles are whole */ };

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

/* Pack the n rows of a panel, `stride` apart. */
static void pack_panel(const real *x, int64_t stride, word *panel, int64_t n, int64_t k) {
    for (int64_t c = 0; c < k / PAIR; c++)
        for (int64_t j = 0; j < WIDTH; j++) panel[c * WIDTH + j] = j < n ? word_at(x + j * stride + c * PAIR) : 0;
}

/* Pack x [n, k]. k is even. */
void pack(const real *x, real *packed, int64_t n, int64_t k) {
    PARALLEL(n * k)
    for (int64_t p = 0; p < parts_of(n, WIDTH); p++)
        pack_panel(x + p * WIDTH * k, k, (word *)(packed + p * WIDTH * k), least(n - p * WIDTH, WIDTH), k);
}

/* Pack the transpose of x [k, n], whose rows are `stride` apart, with zeros for the rows from k to `padded`. */
static void pack_transposed(const real *x, int64_t stride, word *packed, int64_t n, int64_t k, int64_t padded) {
    for (int64_t start = 0; start < n; start += WIDTH)
        for (int64_t c = 0; c < padded; c += PAIR, packed += WIDTH) {
            int64_t columns = c < k ? least(n - start, WIDTH) : 0, is_pair = c + 1 < k;
            const real *first = x + c * stride + start, *second = first + stride;
            for (int64_t i = 0; i < columns; i++) packed[i] = joined(first[i], is_pair ? second[i] : 0);
            for (int64_t i = columns; i < WIDTH; i++) packed[i] = 0;
        }
}

/* y [rows, n] = x [rows, k] times a packed matrix [n, k], + bias unless it is NULL. With `adds`, y += scale * (x times
   the matrix), where each result is rounded first, as in separate operations. If `wide` is given, it is y in fp32, and
   what is added is neither scaled nor rounded. */
typedef struct {
    const real *x, *packed, *bias;
    real *y;
    float *wide;
    int64_t n, k, x_stride, y_stride, adds;
    float scale;
} Product;

/* Write the sums of a row and panel p to y. */
static INLINE void write_sums(const Product *m, int64_t row, int64_t p, const float *sums) {
    int64_t columns = least(m->n - p * WIDTH, WIDTH), start = row * m->y_stride + p * WIDTH;
    if (m->wide) {
        float *total = m->wide + start;
        for (int64_t i = 0; i < columns; i++) total[i] = sums[i] + (m->adds ? total[i] : 0.0f);
        return;
    }
    real *y = m->y + start;
    if (m->adds)
        for (int64_t i = 0; i < columns; i++) y[i] = narrow(wide(y[i]) + rounded(rounded(sums[i]) * m->scale));
    else if (m->bias)
        for (int64_t i = 0; i < columns; i++) y[i] = narrow(sums[i] + wide(m->bias[p * WIDTH + i]));
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
    for (int r = 0; r < rows; r++) {
        float sum[WIDTH];
        memcpy(sum, sums[r], sizeof sum);
        write_sums(m, row + r, p, sum);
    }
}

#ifdef AMX
/* Intrinsics of gcc do not say that they read memory, so stores before them are completed here. */
#define COMPILER_BARRIER __asm__ volatile("" ::: "memory")

static _Thread_local int64_t configured_rows; /* 0: the thread's tiles are not ours */

/* Tiles 0 and 1 are sums of the first 16 rows x 16 columns, 2 and 3 of the others; 4 and 5 are these rows of x, 6 and 7
   are of the panel. A configuration takes as long as a small product, so it is kept. */
static INLINE void configure_tiles(int64_t rows) {
    int64_t upper = least(rows, TILE_ROWS), lower = rows - upper;
    if (configured_rows == rows) return;
    configured_rows = rows;
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int t = 0; t < 8; t++) config.row_bytes[t] = LINE;
    config.rows[0] = config.rows[1] = config.rows[4] = (uint8_t)upper;
    config.rows[2] = config.rows[3] = config.rows[5] = (uint8_t)(lower ? lower : 1);
    config.rows[6] = config.rows[7] = TILE_ROWS;
    COMPILER_BARRIER;
    _tile_loadconfig(&config);
}

/* Multiply 1 to 32 rows by panel p. Sums in fp32 of a whole panel are loaded and stored in place. */
static INLINE void multiply_tiles(const Product *m, int64_t row, int64_t p, int64_t rows) {
    ALIGNED float buffer[2 * TILE_ROWS * WIDTH];
    int is_direct = m->wide && (p + 1) * WIDTH <= m->n;
    float *sums = is_direct ? m->wide + row * m->y_stride + p * WIDTH : buffer;
    int64_t columns = is_direct ? m->y_stride : WIDTH, line = columns * (int64_t)sizeof *sums;
    float *lower = sums + TILE_ROWS * columns;
    const real *x = m->x + row * m->x_stride, *x_lower = x + TILE_ROWS * m->x_stride;
    const word *panel = (const word *)m->packed + p * WIDTH * (m->k / PAIR);
    int64_t stride = m->x_stride * (int64_t)sizeof *x;
    COMPILER_BARRIER;
    if (is_direct && m->adds) {
        _tile_loadd(0, sums, line);
        _tile_loadd(1, sums + LANES, line);
        if (rows > TILE_ROWS) {
            _tile_loadd(2, lower, line);
            _tile_loadd(3, lower + LANES, line);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
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
    _tile_stored(0, sums, line);
    _tile_stored(1, sums + LANES, line);
    if (rows > TILE_ROWS) {
        _tile_stored(2, lower, line);
        _tile_stored(3, lower + LANES, line);
    }
    for (int64_t r = 0; !is_direct && r < rows; r++) write_sums(m, row + r, p, sums + r * WIDTH);
}

static void multiply_panel_by_tiles(const Product *m, int64_t first, int64_t end, int64_t p) {
    int64_t size = 2 * TILE_ROWS, rest = (end - first) % size, row = first;
    if (row < end - rest) configure_tiles(size);
    for (; row < end - rest; row += size) multiply_tiles(m, row, p, size);
    if (!rest) return;
    configure_tiles(rest);
    multiply_tiles(m, row, p, rest);
}
#endif

/* End a thread's products. Other libraries may use the tiles in another way. */
static void release_tiles(void) {
#ifdef AMX
    if (configured_rows) _tile_release();
    configured_rows = 0;
#endif
}

/* Multiply rows [first, end) by panel p, and prefetch the next one of `panels`. */
static void multiply_panel(const Product *m, int64_t first, int64_t end, int64_t p, int64_t panels) {
#ifdef AMX
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
    int64_t panels = parts_of(m->n, WIDTH), block = parts_of(BLOCK / m->k + 1, ROUND) * ROUND;
    for (int64_t first = 0; first < rows; first += block) {
        PRAGMA(omp parallel if (least(rows, block) * m->n * m->k > GRAIN)) {
            PRAGMA(omp for schedule(static))
            for (int64_t p = 0; p < panels; p++) multiply_panel(m, first, least(first + block, rows), p, panels);
            release_tiles();
        }
    }
}

/* y [rows, n] = x [rows, k] times a packed matrix [n, k], + bias unless it is NULL. If `wide` is given, it is y in fp32
   without bias. */
void linear(const real *x, const real *packed, const real *bias, real *y, float *wide, int64_t rows, int64_t n,
            int64_t k) {
    Product m = {x, packed, bias, .y = y, .wide = wide, .n = n, .k = k, .x_stride = k, .y_stride = n};
    multiply(&m, rows);
}

/* ---- attention by products of torch ---- */

/* Overwrite scores over prefix [heads, rows, group, length, np], own [heads, rows, group, length, no] and, if given,
   sinks [heads, rows, group, length] with their common softmax. The query at i of [rows, length] sees the columns of
   [prefix | own] from starts[i] on (from the first if starts is not given), and the first limits[i] of own. Other
   columns become 0. */
void joint_softmax(real *prefix, real *own, float *sinks, const int32_t *starts, const int32_t *limits, int64_t heads,
                   int64_t rows, int64_t group, int64_t length, int64_t np, int64_t no, float scale, float softcap) {
    int64_t queries = heads * rows * group * length;
    PRAGMA(omp parallel if (queries * (np + no) > GRAIN)) {
        float *x = allocate(np + no + 1 + PAD, sizeof *x);
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
   the tokens of x. */
void gather_heads(const real *x, const int64_t *index, real *out, int64_t heads, int64_t rows, int64_t length,
                  int64_t group, int64_t d, int64_t stride) {
    PARALLEL(heads * rows * group * length * d)
    for (int64_t r = 0; r < heads * rows * group; r++) {
        int64_t first = (r / group) % rows * length, head = r / (rows * group) * group + r % group;
        for (int64_t i = 0; i < length; i++) {
            real *to = out + (r * length + i) * d;
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

/* ---- attention of a tree of tokens ---- */

/* Queries [queries, heads * group, d] over keys [keys, heads, d] and values [keys, heads, dv], whose tokens are
   `*_stride` apart. The tokens are in preorder. Query i is token `before` + i, and sees key j if j <= before + i < ends[j]
   and firsts[i] <= places[j]. `firsts` may be NULL, and then excludes nothing. d and dv are even and at most
   MOST_DIM.

   Rows are pairs of a query and one of the `group` heads of a key head. Products are of a panel of WIDTH rows and one of
   WIDTH keys; panels of which no row sees a key are skipped. No score is stored: probabilities are 2^(score - lse), where
   scores and lse [queries, heads * group] are logarithms to base 2 (FlashAttention-2, Dao 2023, arXiv:2307.08691). */
typedef struct {
    const real *q, *k, *v;
    const int32_t *ends, *places, *firsts;
    const float *sinks;
    int64_t queries, keys, before, heads, group, dim, value_dim, q_stride, k_stride, v_stride;
    float scale, softcap;
} Attention;

/* What decides which rows see which keys, for whole panels: rows that are added see nothing, keys are seen by none. */
typedef struct {
    int32_t *tokens, *firsts;                   /* of rows */
    int32_t *ends, *places;                     /* of keys */
    int32_t *least_end, *most_end, *last_place; /* of panels of keys */
    int64_t rows, row_panels, key_panels;
} Sight;

static Sight sight_of(const Attention *a) {
    int64_t rows = a->queries * a->group, row_panels = parts_of(rows, WIDTH), key_panels = parts_of(a->keys, WIDTH);
    int64_t padded_rows = row_panels * WIDTH, padded_keys = key_panels * WIDTH;
    int32_t *memory = allocate(2 * padded_rows + 2 * padded_keys + 3 * key_panels, sizeof *memory);
    Sight s = {.tokens = memory, .rows = rows, .row_panels = row_panels, .key_panels = key_panels};
    s.firsts = s.tokens + padded_rows, s.ends = s.firsts + padded_rows, s.places = s.ends + padded_keys;
    s.least_end = s.places + padded_keys, s.most_end = s.least_end + key_panels, s.last_place = s.most_end + key_panels;
    for (int64_t r = 0; r < padded_rows; r++) {
        s.tokens[r] = r < rows ? (int32_t)(a->before + r / a->group) : -1;
        s.firsts[r] = r < rows && a->firsts ? a->firsts[r / a->group] : INT32_MIN;
    }
    for (int64_t j = 0; j < padded_keys; j++) {
        s.ends[j] = j < a->keys ? a->ends[j] : 0;
        s.places[j] = j < a->keys && a->places ? a->places[j] : 0;
    }
    for (int64_t p = 0; p < key_panels; p++) {
        const int32_t *ends = s.ends + p * WIDTH, *places = s.places + p * WIDTH;
        s.least_end[p] = s.most_end[p] = ends[0], s.last_place[p] = places[0];
        for (int64_t j = 1; j < WIDTH; j++) {
            s.least_end[p] = ends[j] < s.least_end[p] ? ends[j] : s.least_end[p];
            s.most_end[p] = ends[j] > s.most_end[p] ? ends[j] : s.most_end[p];
            s.last_place[p] = places[j] > s.last_place[p] ? places[j] : s.last_place[p];
        }
    }
    return s;
}

enum { NONE, SOME, ALL };

/* Return whether the rows of panel r see the keys of panel p. It may be SOME in place of NONE or ALL. */
static int sees(const Attention *a, const Sight *s, int64_t r, int64_t p) {
    int64_t last = least((r + 1) * WIDTH, s->rows) - 1;
    int32_t first_token = s->tokens[r * WIDTH], last_token = s->tokens[last];
    if (p * WIDTH > last_token || s->most_end[p] <= first_token) return NONE;
    if (a->firsts) {
        int32_t first = s->firsts[r * WIDTH];
        for (int64_t i = r * WIDTH + 1; i <= last; i++) first = s->firsts[i] < first ? s->firsts[i] : first;
        return s->last_place[p] < first ? NONE : SOME;
    }
    int is_full = (p + 1) * WIDTH - 1 <= first_token && s->least_end[p] > last_token && last % WIDTH == WIDTH - 1;
    return is_full ? ALL : SOME;
}

/* Write 1 for each key of panel p that a row sees, and 0 for the others. */
static void keys_seen(const Sight *s, int64_t row, int64_t p, float *seen) {
    int32_t token = s->tokens[row], first = s->firsts[row], start = (int32_t)(p * WIDTH);
    const int32_t *ends = s->ends + start, *places = s->places + start;
    for (int32_t j = 0; j < WIDTH; j++)
        seen[j] = (float)((start + j <= token) & (token < ends[j]) & (first <= places[j]));
}

/* Write 1 for each row of panel r that sees a key, and 0 for the others. */
static void rows_that_see(const Sight *s, int64_t key, int64_t r, float *seen) {
    const int32_t *tokens = s->tokens + r * WIDTH, *firsts = s->firsts + r * WIDTH;
    int32_t end = s->ends[key], place = s->places[key];
    for (int64_t i = 0; i < WIDTH; i++)
        seen[i] = (float)((key <= tokens[i]) & (tokens[i] < end) & (firsts[i] <= place));
}

/* Return the score of a product to base 2, and its derivative divided by the scale. */
static INLINE float score_of(const Attention *a, float x, float *slope) {
    if (a->softcap <= 0) {
        *slope = 1.0f;
        return a->scale * LOG2E * x;
    }
    float capped = 2.0f * sigmoid(2.0f * a->scale / a->softcap * x) - 1.0f;
    *slope = 1.0f - capped * capped;
    return a->softcap * LOG2E * capped;
}

/* Return the place of row r of a key head among [queries, heads * group]. */
static int64_t place_of(const Attention *a, int64_t h, int64_t r) {
    return (r / a->group * a->heads + h) * a->group + r % a->group;
}

/* Copy rows [first, first + count) of a key head, of queries or of what has their shape. */
static void copy_rows(const Attention *a, const real *x, int64_t stride, int64_t d, int64_t h, int64_t first,
                      int64_t count, real *rows) {
    for (int64_t r = first; r < first + count; r++, rows += d)
        memcpy(rows, x + r / a->group * stride + (h * a->group + r % a->group) * d, (size_t)d * sizeof *rows);
}

/* scores [rows, WIDTH] = rows of x times a panel. */
static void score_panel(const real *x, int64_t stride, const real *packed, float *scores, int64_t rows, int64_t d) {
    Product m = {x, packed, .wide = scores, .n = WIDTH, .k = d, .x_stride = stride, .y_stride = WIDTH};
    multiply_panel(&m, 0, rows, 0, 0);
}

/* sums [rows, d] += weights [rows, WIDTH] times a panel that is packed transposed. */
static void add_panel(const real *weights, const real *packed, float *sums, int64_t rows, int64_t d) {
    Product m = {weights, packed, .wide = sums, .n = d, .k = WIDTH, .x_stride = WIDTH, .y_stride = d, .adds = 1};
    for (int64_t p = 0; p < parts_of(d, WIDTH); p++) multiply_panel(&m, 0, rows, p, 0);
}

static int64_t panel_size(int64_t d) { return WIDTH * d; }
static int64_t transposed_size(int64_t d) { return parts_of(d, WIDTH) * WIDTH * WIDTH; }

/* Panels of keys, or of rows, of all key heads, and their transposes. What is not needed is NULL. */
typedef struct {
    real *panels, *transposed;
    int64_t count, dim;
} Panels;

static Panels new_panels(int64_t heads, int64_t count, int64_t d, int panels, int transposed) {
    Panels x = {NULL, NULL, count, d};
    if (panels) x.panels = allocate(heads * count * panel_size(d), sizeof(real));
    if (transposed) x.transposed = allocate(heads * count * transposed_size(d), sizeof(real));
    return x;
}

static void free_panels(Panels *x) { free(x->panels), free(x->transposed); }

static const real *panel_of(const Panels *x, int64_t h, int64_t p) {
    return x->panels + (h * x->count + p) * panel_size(x->dim);
}

static const real *transposed_of(const Panels *x, int64_t h, int64_t p) {
    return x->transposed + (h * x->count + p) * transposed_size(x->dim);
}

static void fill_panel(const Panels *x, int64_t h, int64_t p, const real *rows, int64_t stride, int64_t count) {
    if (x->panels) pack_panel(rows, stride, (word *)panel_of(x, h, p), count, x->dim);
    if (x->transposed) pack_transposed(rows, stride, (word *)transposed_of(x, h, p), x->dim, count, WIDTH);
}

static void fill_keys(const Attention *a, const Panels *k, const Panels *v) {
    PARALLEL(a->heads * a->keys * a->dim)
    for (int64_t i = 0; i < a->heads * k->count; i++) {
        int64_t h = i / k->count, p = i % k->count, count = least(a->keys - p * WIDTH, WIDTH);
        fill_panel(k, h, p, a->k + p * WIDTH * a->k_stride + h * a->dim, a->k_stride, count);
        fill_panel(v, h, p, a->v + p * WIDTH * a->v_stride + h * a->value_dim, a->v_stride, count);
    }
}

static void attend_row_panel(const Attention *a, const Sight *s, const Panels *k, const Panels *v, int64_t h, int64_t r,
                             real *out, float *lse) {
    int64_t first = r * WIDTH, rows = least(s->rows - first, WIDTH), dv = a->value_dim;
    ALIGNED real x[WIDTH * MOST_DIM], weights[WIDTH * WIDTH];
    ALIGNED float scores[WIDTH * WIDTH], sums[WIDTH * MOST_DIM], visible[WIDTH], max[WIDTH], total[WIDTH];
    copy_rows(a, a->q, a->q_stride, a->dim, h, first, rows, x);
    memset(sums, 0, (size_t)(rows * dv) * sizeof *sums);
    for (int64_t i = 0; i < rows; i++) {
        max[i] = a->sinks ? LOG2E * a->sinks[h * a->group + (first + i) % a->group] : LOWEST;
        total[i] = a->sinks != NULL;
    }
    for (int64_t p = 0; p < s->key_panels; p++) {
        int seen = sees(a, s, r, p);
        if (seen == NONE) continue;
        score_panel(x, a->dim, panel_of(k, h, p), scores, rows, a->dim);
        for (int64_t i = 0; i < rows; i++) {
            float *row = scores + i * WIDTH, most = max[i], sum = 0, slope;
            for (int64_t j = 0; j < WIDTH; j++) row[j] = score_of(a, row[j], &slope);
            if (seen == SOME) {
                keys_seen(s, first + i, p, visible);
                for (int64_t j = 0; j < WIDTH; j++) row[j] = visible[j] > 0 ? row[j] : LOWEST;
            }
            for (int64_t j = 0; j < WIDTH; j++) most = row[j] > most ? row[j] : most;
            for (int64_t j = 0; j < WIDTH; j++) {
                float e = pow2(row[j] - most);
                sum += e = row[j] > LOWEST ? e : 0.0f;
                weights[i * WIDTH + j] = narrow(e);
            }
            if (most > max[i]) {
                float shrunk = pow2(max[i] - most);
                total[i] *= shrunk, max[i] = most;
                for (int64_t c = 0; c < dv; c++) sums[i * dv + c] *= shrunk;
            }
            total[i] += sum;
        }
        add_panel(weights, transposed_of(v, h, p), sums, rows, dv);
    }
    for (int64_t i = 0; i < rows; i++) {
        int64_t place = place_of(a, h, first + i);
        narrow_row(sums + i * dv, dv, total[i] > 0 ? 1.0f / total[i] : 0.0f, out + place * dv);
        lse[place] = total[i] > 0 ? max[i] + log2f(total[i]) : 0.0f;
    }
}

/* Attention, out [queries, heads * group, dv], and lse. */
void tree_attention(const real *q, const real *k, const real *v, const int32_t *ends, const int32_t *places,
                    const int32_t *firsts, const float *sinks, real *out, float *lse, int64_t queries, int64_t keys,
                    int64_t heads, int64_t group, int64_t d, int64_t dv, int64_t q_stride, int64_t k_stride,
                    int64_t v_stride, float scale, float softcap) {
    Attention a = {q, k, v, ends, places, firsts, sinks, queries, keys, keys - queries, heads, group, d, dv, q_stride,
                   k_stride, v_stride, scale, softcap};
    Sight s = sight_of(&a);
    Panels packed_k = new_panels(heads, s.key_panels, d, 1, 0), packed_v = new_panels(heads, s.key_panels, dv, 0, 1);
    fill_keys(&a, &packed_k, &packed_v);
    PRAGMA(omp parallel) {
        PRAGMA(omp for schedule(dynamic))
        for (int64_t i = heads * s.row_panels - 1; i >= 0; i--)
            attend_row_panel(&a, &s, &packed_k, &packed_v, i % heads, i / heads, out, lse);
        release_tiles();
    }
    free_panels(&packed_k), free_panels(&packed_v), free(s.tokens);
}

/* What the backward pass needs of the rows of all key heads: q and the gradient of the result as panels, lse, and delta,
   which is the sum of that gradient times the result. */
typedef struct {
    Panels q, grad;
    float *lse, *delta;
} Rows;

/* Write the probabilities of a row of products, and the gradients of these products, given the gradients of the
   probabilities. Element i has lse[i * step] and delta[i * step], and gets zeros if visible[i] is 0. */
static INLINE void weigh(const Attention *a, const float *products, const float *grads, const float *lse,
                         const float *delta, int64_t step, const float *visible, real *weights, real *score_grads) {
    for (int64_t i = 0; i < WIDTH; i++) {
        float slope, t = score_of(a, products[i], &slope) - lse[i * step];
        float p = visible[i] * pow2(t < 126.0f ? t : 126.0f); /* scores that are not visible may exceed lse */
        weights[i] = narrow(p);
        score_grads[i] = narrow(p * (grads[i] - delta[i * step]) * a->scale * slope);
    }
}

/* The gradient of the queries of a panel of rows. */
static void query_gradient(const Attention *a, const Sight *s, const Panels *k, const Panels *v, const Rows *all,
                           const real *grad, int64_t h, int64_t r, real *dq) {
    int64_t first = r * WIDTH, rows = least(s->rows - first, WIDTH), d = a->dim, dv = a->value_dim;
    ALIGNED real x[WIDTH * MOST_DIM], g[WIDTH * MOST_DIM], weights[WIDTH], grads[WIDTH * WIDTH];
    ALIGNED float scores[WIDTH * WIDTH], products[WIDTH * WIDTH], sums[WIDTH * MOST_DIM], visible[WIDTH];
    int64_t place = h * s->row_panels * WIDTH + first;
    const float *lse = all->lse + place, *delta = all->delta + place;
    copy_rows(a, a->q, a->q_stride, d, h, first, rows, x);
    copy_rows(a, grad, a->heads * a->group * dv, dv, h, first, rows, g);
    memset(sums, 0, (size_t)(rows * d) * sizeof *sums);
    for (int64_t p = 0; p < s->key_panels; p++) {
        int seen = sees(a, s, r, p);
        if (seen == NONE) continue;
        score_panel(x, d, panel_of(k, h, p), scores, rows, d);
        score_panel(g, dv, panel_of(v, h, p), products, rows, dv);
        for (int64_t j = 0; j < WIDTH; j++) visible[j] = 1;
        for (int64_t i = 0; i < rows; i++) {
            int64_t at = i * WIDTH;
            if (seen == SOME) keys_seen(s, first + i, p, visible);
            weigh(a, scores + at, products + at, lse + i, delta + i, 0, visible, weights, grads + at);
        }
        add_panel(grads, transposed_of(k, h, p), sums, rows, d);
    }
    for (int64_t i = 0; i < rows; i++) narrow_row(sums + i * d, d, 1.0f, dq + place_of(a, h, first + i) * d);
}

/* The gradients of the keys and values of a panel. */
static void key_gradients(const Attention *a, const Sight *s, const Rows *all, int64_t h, int64_t p, real *dk,
                          real *dv) {
    int64_t first = p * WIDTH, keys = least(a->keys - first, WIDTH), d = a->dim, dim = a->value_dim;
    const real *x = a->k + first * a->k_stride + h * d, *values = a->v + first * a->v_stride + h * dim;
    ALIGNED real weights[WIDTH * WIDTH], grads[WIDTH * WIDTH];
    ALIGNED float scores[WIDTH * WIDTH], products[WIDTH * WIDTH], visible[WIDTH];
    ALIGNED float of_keys[WIDTH * MOST_DIM], of_values[WIDTH * MOST_DIM];
    memset(of_keys, 0, (size_t)(keys * d) * sizeof *of_keys);
    memset(of_values, 0, (size_t)(keys * dim) * sizeof *of_values);
    for (int64_t r = 0; r < s->row_panels; r++) {
        int seen = sees(a, s, r, p);
        if (seen == NONE) continue;
        int64_t row = r * WIDTH, place = h * s->row_panels * WIDTH + row;
        const float *lse = all->lse + place, *delta = all->delta + place;
        score_panel(x, a->k_stride, panel_of(&all->q, h, r), scores, keys, d);
        score_panel(values, a->v_stride, panel_of(&all->grad, h, r), products, keys, dim);
        for (int64_t j = 0; j < WIDTH; j++) visible[j] = 1;
        for (int64_t i = 0; i < keys; i++) {
            int64_t at = i * WIDTH;
            if (seen == SOME) rows_that_see(s, first + i, r, visible);
            weigh(a, scores + at, products + at, lse, delta, 1, visible, weights + at, grads + at);
        }
        add_panel(weights, transposed_of(&all->grad, h, r), of_values, keys, dim);
        add_panel(grads, transposed_of(&all->q, h, r), of_keys, keys, d);
    }
    for (int64_t i = 0; i < keys; i++) {
        int64_t place = (first + i) * a->heads + h;
        narrow_row(of_keys + i * d, d, 1.0f, dk + place * d);
        narrow_row(of_values + i * dim, dim, 1.0f, dv + place * dim);
    }
}

static Rows rows_of(const Attention *a, const Sight *s, const real *grad, const float *lse, const float *delta) {
    int64_t d = a->dim, dv = a->value_dim, panels = s->row_panels, padded = panels * WIDTH;
    size_t size = (size_t)(a->heads * padded) * sizeof(float);
    Rows all = {new_panels(a->heads, panels, d, 1, 1), new_panels(a->heads, panels, dv, 1, 1), malloc(size),
                malloc(size)};
    PARALLEL(a->heads * a->group * a->queries * d)
    for (int64_t i = 0; i < a->heads * panels; i++) {
        int64_t h = i / panels, first = i % panels * WIDTH, count = least(s->rows - first, WIDTH);
        real rows[WIDTH * MOST_DIM];
        copy_rows(a, a->q, a->q_stride, d, h, first, count, rows);
        fill_panel(&all.q, h, i % panels, rows, d, count);
        copy_rows(a, grad, a->heads * a->group * dv, dv, h, first, count, rows);
        fill_panel(&all.grad, h, i % panels, rows, dv, count);
        for (int64_t r = first; r < first + WIDTH; r++) {
            all.lse[h * padded + r] = r < s->rows ? lse[place_of(a, h, r)] : 0.0f;
            all.delta[h * padded + r] = r < s->rows ? delta[place_of(a, h, r)] : 0.0f;
        }
    }
    return all;
}

/* The gradients of `tree_attention` for a gradient of its result. delta [queries, heads * group] is the sum of that
   gradient times the result. */
void tree_attention_backward(const real *grad, const real *q, const real *k, const real *v, const int32_t *ends,
                             const int32_t *places, const int32_t *firsts, const float *lse, const float *delta,
                             real *dq, real *dk, real *dv, int64_t queries, int64_t keys, int64_t heads, int64_t group,
                             int64_t d, int64_t value_dim, int64_t q_stride, int64_t k_stride, int64_t v_stride,
                             float scale, float softcap) {
    Attention a = {q, k, v, ends, places, firsts, NULL, queries, keys, keys - queries, heads, group, d, value_dim,
                   q_stride, k_stride, v_stride, scale, softcap};
    Sight s = sight_of(&a);
    Panels packed_k = new_panels(heads, s.key_panels, d, 1, 1);
    Panels packed_v = new_panels(heads, s.key_panels, value_dim, 1, 0);
    fill_keys(&a, &packed_k, &packed_v);
    Rows all = rows_of(&a, &s, grad, lse, delta);
    PRAGMA(omp parallel) {
        PRAGMA(omp for schedule(dynamic) nowait)
        for (int64_t i = 0; i < heads * s.key_panels; i++)
            key_gradients(&a, &s, &all, i % heads, i / heads, dk, dv);
        PRAGMA(omp for schedule(dynamic))
        for (int64_t i = heads * s.row_panels - 1; i >= 0; i--)
            query_gradient(&a, &s, &packed_k, &packed_v, &all, grad, i % heads, i / heads, dq);
        release_tiles();
    }
    free_panels(&packed_k), free_panels(&packed_v), free_panels(&all.q), free_panels(&all.grad);
    free(all.lse), free(all.delta), free(s.tokens);
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
        s.weights = allocate(4 * stride, sizeof(float));
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
    linear(x, layer->weight, layer->bias, y, NULL, rows, layer->outputs, layer->inputs);
    if (!layer->rank) return;
    linear(x, layer->down, NULL, low_rank, NULL, rows, layer->rank, layer->inputs);
    Product m = {low_rank, layer->up, .y = y, .n = layer->outputs, .k = layer->rank, .x_stride = layer->rank};
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
    int64_t d = pass->dim, np = g->length, padded = parts_of(np, STEP) * STEP, size = pass->group * d;
    const real *queries = b->queries + (h * pass->rows + first) * size;
    real *out = b->attended + (h * pass->rows + first) * size;
    if (np) {
        const real *keys = g->prefix[2 * l] + h * np * d;
        for (int64_t p = 0; p < parts_of(np, WIDTH); p++) {
            int64_t start = p * WIDTH;
            pack_panel(keys + start * d, d, (word *)(scratch->packed + start * d), least(np - start, WIDTH), d);
        }
        Product m = {queries, scratch->packed, .y = scratch->scores, .n = np, .k = d, .x_stride = d};
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
        for (int64_t i = 0; i < count; i++)
            memset(scratch->scores + i * padded + np, 0, (size_t)(padded - np) * sizeof(real));
        pack_transposed(g->prefix[2 * l + 1] + h * np * d, d, (word *)scratch->packed, d, np, padded);
        Product m = {scratch->scores, scratch->packed, .y = out, .n = d, .k = padded, .x_stride = padded};
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
        Scratch scratch = {allocate(columns * (d + WIDTH), sizeof(real)),
                           allocate(CHUNK_ROWS * pass->group * (prefix + STEP), sizeof(real)),
                           allocate(4 * stride, sizeof(float))};
        PRAGMA(omp for schedule(dynamic))
        for (int64_t i = 0; i < chunks * pass->heads; i++) {
            const Group *group = pass->groups;
            int64_t chunk = i / pass->heads, in_group;
            while (chunk >= (in_group = parts_of(group->stop - group->start, CHUNK_ROWS))) chunk -= in_group, group++;
            int64_t first = group->start + chunk * CHUNK_ROWS, end = least(first + CHUNK_ROWS, group->stop);
            attend_rows(pass, l, b, group, i % pass->heads, first, end, stride, &scratch);
        }
        release_tiles();
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
    real *place[9];
    for (int i = 0; i < 9; i++) place[i] = allocate(rows * sizes[i], sizeof(real));
    Buffers b = {place[0], place[1], place[2], place[3], place[4], place[5], place[6], place[7], place[8],
                 allocate(rows, sizeof(float))};
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
    for (int i = 0; i < 9; i++) free(place[i]);
    free(b.rstd);
}

/* ---- weights ---- */

/* total += x, of n elements. */
void add_widened(const real *x, float *total, int64_t n) {
    PARALLEL(n)
    for (int64_t i = 0; i < n; i++) total[i] += wide(x[i]);
}

enum { SPAN = 1 << 14 /* elements that are summed in fp32 */ };

/* weights [n] = masters. norms [parts_of(n, SPAN), 2] get the sums of squares of the change and of the new weights. */
void copy_rounded(real *weights, const float *masters, float *norms, int64_t n) {
    PARALLEL(n)
    for (int64_t part = 0; part < parts_of(n, SPAN); part++) {
        float change = 0, size = 0;
        for (int64_t i = part * SPAN; i < least((part + 1) * SPAN, n); i++) {
            float old = wide(weights[i]), new = rounded(masters[i]);
            change += (new - old) * (new - old);
            size += new * new;
            weights[i] = narrow(new);
        }
        norms[2 * part] = change;
        norms[2 * part + 1] = size;
    }
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
