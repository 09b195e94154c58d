/* Fused pointwise kernels and decode attention for bfloat16 on a CPU; kernels.py holds the Python side of each.

   Plain C11 that gcc and clang vectorise; matrix products stay with torch. Tensors are contiguous except where a stride
   is an argument; all sizes and strides count elements. Arithmetic is fp32, stores round to nearest even. Every row is
   computed by one thread in one order, so results do not depend on the number of threads. */

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;

#define LOG2E 1.44269504088896341f
#define LOWEST -1e30f
#define PARALLEL _Pragma("omp parallel for schedule(static)")

static inline float wide(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

static inline bf16 narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline float rounded(float x) { return wide(narrow(x)); }

/* 2^x for x < 127, relative error below 2e-7; 0 below 2^-125. */
static inline float pow2(float x) {
    float clamped = x < -125.0f ? -125.0f : x;
    float whole = rintf(clamped), part = clamped - whole;
    float y = 1.8775767e-3f;
    y = y * part + 8.9893397e-3f;
    y = y * part + 5.5826318e-2f;
    y = y * part + 2.4015361e-1f;
    y = y * part + 6.9315308e-1f;
    y = y * part + 9.9999994e-1f;
    int32_t bits;
    memcpy(&bits, &y, sizeof bits);
    bits += (int32_t)whole * (1 << 23);
    memcpy(&y, &bits, sizeof y);
    return x < -125.0f ? 0.0f : y;
}

static inline float sigmoid(float x) {
    float t = -LOG2E * x;
    return 1.0f / (1.0f + pow2(t > 126.0f ? 126.0f : t));
}

/* ---- rows of a softmax: probabilities are 2^(a*x - b) ---- */

static float row_max(const bf16 *x, int64_t n, float max) {
    for (int64_t i = 0; i < n; i++) {
        float y = wide(x[i]);
        max = y > max ? y : max;
    }
    return max;
}

static float row_sum(const bf16 *x, int64_t n, float a, float b) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += pow2(a * wide(x[i]) - b);
    return sum;
}

static void row_exp(bf16 *x, int64_t n, float a, float b) {
    for (int64_t i = 0; i < n; i++) x[i] = narrow(pow2(a * wide(x[i]) - b));
}

/* ---- attention of prefill and training ---- */

void joint_softmax(bf16 *prefix, bf16 *own, const int32_t *limits, int64_t heads, int64_t rows, int64_t np, int64_t no,
                   float scale) {
    float a = scale * LOG2E;
    PARALLEL
    for (int64_t r = 0; r < heads * rows; r++) {
        bf16 *p = prefix + r * np, *o = own + r * no;
        int64_t n = limits[r % rows];
        float max = row_max(o, n, row_max(p, np, LOWEST));
        float sum = row_sum(p, np, a, a * max) + row_sum(o, n, a, a * max);
        float b = a * max + log2f(sum);
        row_exp(p, np, a, b);
        row_exp(o, n, a, b);
        memset(o + n, 0, (size_t)(no - n) * sizeof *o);
    }
}

static void row_softmax_grad(bf16 *grad, const bf16 *probs, int64_t n, float delta, float scale) {
    for (int64_t i = 0; i < n; i++) grad[i] = narrow(wide(probs[i]) * (wide(grad[i]) - delta) * scale);
}

void joint_softmax_backward(bf16 *prefix_grad, bf16 *own_grad, const bf16 *prefix, const bf16 *own, const float *delta,
                            int64_t rows, int64_t np, int64_t no, float scale) {
    PARALLEL
    for (int64_t r = 0; r < rows; r++) {
        row_softmax_grad(prefix_grad + r * np, prefix + r * np, np, delta[r], scale);
        row_softmax_grad(own_grad + r * no, own + r * no, no, delta[r], scale);
    }
}

void row_dot(const bf16 *a, const bf16 *b, float *out, int64_t rows, int64_t d) {
    PARALLEL
    for (int64_t r = 0; r < rows; r++) {
        float sum = 0;
        for (int64_t i = 0; i < d; i++) sum += wide(a[r * d + i]) * wide(b[r * d + i]);
        out[r] = sum;
    }
}

/* ---- RMSNorm ---- */

/* y = weight * bf16(x / rms(x)); with `residual`, x becomes x + residual, kept in `sums`. */
void rms_norm(const bf16 *x, const bf16 *residual, bf16 *sums, const bf16 *weight, bf16 *y, float *rstd, int64_t rows,
              int64_t d, float eps) {
    PARALLEL
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *in = x + r * d;
        bf16 *out = y + r * d;
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

/* dx = rstd * (g - xhat * mean(g * xhat)) + grad_sum with g = grad * weight; dweight = sum over rows of grad * xhat, if
   `partial` [parts, d] is given: one row of it for each of a fixed number of ranges of rows. */
void rms_norm_backward(const bf16 *grad, const bf16 *grad_sum, const bf16 *x, const bf16 *weight, const float *rstd,
                       bf16 *dx, float *partial, int64_t parts, int64_t rows, int64_t d) {
    PARALLEL
    for (int64_t part = 0; part < parts; part++)
        for (int64_t r = rows * part / parts; r < rows * (part + 1) / parts; r++) {
            const bf16 *g = grad + r * d, *in = x + r * d;
            bf16 *out = dx + r * d;
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

void swiglu(const bf16 *gate, const bf16 *up, bf16 *y, int64_t rows, int64_t d, int64_t gate_stride, int64_t up_stride) {
    PARALLEL
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *g = gate + r * gate_stride, *u = up + r * up_stride;
        bf16 *out = y + r * d;
        for (int64_t i = 0; i < d; i++) out[i] = narrow(rounded(wide(g[i]) * sigmoid(wide(g[i]))) * wide(u[i]));
    }
}

void swiglu_backward(const bf16 *grad, const bf16 *gate, const bf16 *up, bf16 *dgate, bf16 *dup, int64_t rows, int64_t d,
                     int64_t gate_stride, int64_t up_stride) {
    PARALLEL
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *dy = grad + r * d, *g = gate + r * gate_stride, *u = up + r * up_stride;
        bf16 *dg = dgate + r * d, *du = dup + r * d;
        for (int64_t i = 0; i < d; i++) {
            float x = wide(g[i]), s = sigmoid(x);
            du[i] = narrow(wide(dy[i]) * rounded(x * s));
            dg[i] = narrow(wide(dy[i]) * wide(u[i]) * s * (1.0f + x * (1.0f - s)));
        }
    }
}

/* ---- rotary position embedding ---- */

/* Halves (x1, x2) of each head become (x1 cos - x2 sin, x2 cos + x1 sin); `sign` -1 rotates back. */
void rope(const bf16 *x, const float *cosine, const float *sine, bf16 *y, int64_t rows, int64_t heads, int64_t d,
          int64_t stride, float sign) {
    int64_t half = d / 2;
    PARALLEL
    for (int64_t r = 0; r < rows; r++) {
        const float *c = cosine + r * d, *s = sine + r * d;
        for (int64_t h = 0; h < heads; h++) {
            const bf16 *in = x + r * stride + h * d;
            bf16 *out = y + (r * heads + h) * d;
            for (int64_t i = 0; i < half; i++) {
                float x1 = wide(in[i]), x2 = wide(in[i + half]), turn = sign * s[i];
                out[i] = narrow(x1 * c[i] - x2 * turn);
                out[i + half] = narrow(x2 * c[i] + x1 * turn);
            }
        }
    }
}

/* ---- decode attention: one step of many sequences over a cache of keys and values ---- */

enum { MOST_GROUP = 16, MOST_DIM = 256, BLOCK = 64 };

typedef struct {
    int64_t group, d;
    float max[MOST_GROUP], sum[MOST_GROUP];
    float q[MOST_GROUP * MOST_DIM], out[MOST_GROUP * MOST_DIM]; /* [group, d] */
    float weights[MOST_GROUP * BLOCK];                         /* [group, BLOCK] */
} Row;

/* weights = q . keys for the next n keys, in powers of two; the running maximum, sum and output follow. */
static void scores_of_block(Row *row, const bf16 *keys, int64_t n) {
    int64_t d = row->d;
    for (int64_t j = 0; j < n; j++)
        for (int64_t g = 0; g < row->group; g++) {
            float dot = 0;
            for (int64_t i = 0; i < d; i++) dot += row->q[g * d + i] * wide(keys[j * d + i]);
            row->weights[g * BLOCK + j] = dot;
        }
}

static void softmax_of_block(Row *row, int64_t n) {
    for (int64_t g = 0; g < row->group; g++) {
        float *weights = row->weights + g * BLOCK, *out = row->out + g * row->d, max = row->max[g], sum = 0;
        for (int64_t j = 0; j < n; j++) max = weights[j] > max ? weights[j] : max;
        for (int64_t j = 0; j < n; j++) sum += weights[j] = pow2(weights[j] - max);
        float shrink = pow2(row->max[g] - max);
        for (int64_t i = 0; i < row->d; i++) out[i] *= shrink;
        row->sum[g] = row->sum[g] * shrink + sum;
        row->max[g] = max;
    }
}

static void add_values_of_block(Row *row, const bf16 *values, int64_t n) {
    int64_t d = row->d;
    for (int64_t j = 0; j < n; j++)
        for (int64_t g = 0; g < row->group; g++) {
            float weight = row->weights[g * BLOCK + j];
            for (int64_t i = 0; i < d; i++) row->out[g * d + i] += weight * wide(values[j * d + i]);
        }
}

static void decode_row(Row *row, bf16 *prefix, int64_t np, const bf16 *keys, const bf16 *values, int64_t n, float a) {
    for (int64_t g = 0; g < row->group; g++) {
        row->max[g] = np ? a * row_max(prefix + g * np, np, LOWEST) : LOWEST;
        row->sum[g] = row_sum(prefix + g * np, np, a, row->max[g]);
    }
    memset(row->out, 0, (size_t)(row->group * row->d) * sizeof(float));
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t size = n - start < BLOCK ? n - start : BLOCK;
        scores_of_block(row, keys + start * row->d, size);
        softmax_of_block(row, size);
        add_values_of_block(row, values + start * row->d, size);
    }
    for (int64_t g = 0; g < row->group; g++) row_exp(prefix + g * np, np, a, row->max[g] + log2f(row->sum[g]));
}

/* q and out [heads, rows, group, d], prefix [heads, rows, group, np]; keys and values with strides over heads and rows. */
void decode_attention(const bf16 *q, bf16 *prefix, const bf16 *keys, const bf16 *values, const int32_t *lengths,
                      bf16 *out, int64_t heads, int64_t rows, int64_t group, int64_t d, int64_t np, int64_t head_stride,
                      int64_t row_stride, float scale) {
    float a = scale * LOG2E;
    _Pragma("omp parallel for schedule(dynamic)")
    for (int64_t r = 0; r < heads * rows; r++) {
        Row row = {.group = group, .d = d};
        int64_t start = r / rows * head_stride + r % rows * row_stride;
        if (!lengths[r % rows]) {
            memset(out + r * group * d, 0, (size_t)(group * d) * sizeof *out);
            memset(prefix + r * group * np, 0, (size_t)(group * np) * sizeof *out);
            continue;
        }
        for (int64_t i = 0; i < group * d; i++) row.q[i] = a * wide(q[r * group * d + i]);
        decode_row(&row, prefix + r * group * np, np, keys + start, values + start, lengths[r % rows], a);
        for (int64_t i = 0; i < group * d; i++) out[r * group * d + i] = narrow(row.out[i] / row.sum[i / d]);
    }
}
