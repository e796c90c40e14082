/* The module pstranspile.runtime.arithmetic._loops: the loops of _loops.h for Python.

A function returns True when it has done its work. It returns False, and changes nothing, if an argument is not a
C-contiguous array of float32 (labels and rows: int64) of the expected size, or is read-only although it is written. Two
further functions put messages of machines into the bytes of a frame, and read them. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __linux__
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>
#endif

#include "_loops.h"

#define MANY 32768 /* from this many elements on, other threads may run meanwhile */

typedef struct {
    Py_buffer views[24];
    int count;
} Arrays;

static void release(Arrays *arrays) {
    while (arrays->count) PyBuffer_Release(&arrays->views[--arrays->count]);
}

/* Whether an array has elements of a kind: 'f' (float32), 'i' (int32), 'I' (uint32), 'q' (int64) or 'B' (uint8). */
static int is_kind(const char *format, char kind) {
    if (!format || !format[0] || format[1]) return 0;
    if (kind == 'i') return format[0] == 'i' || (format[0] == 'l' && sizeof(long) == 4);
    if (kind == 'I') return format[0] == 'I' || (format[0] == 'L' && sizeof(long) == 4);
    if (kind != 'q') return format[0] == kind;
    return format[0] == 'q' || (format[0] == 'l' && sizeof(long) == 8);
}

/* The memory of an array of `size` elements (of any number, if negative), or NULL. */
static void *memory(Arrays *arrays, PyObject *value, char kind, int written, Size size) {
    Py_buffer *view = &arrays->views[arrays->count];
    if (PyObject_GetBuffer(value, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (written ? PyBUF_WRITABLE : 0))) {
        PyErr_Clear();
        return NULL;
    }
    arrays->count++;
    if (!is_kind(view->format, kind) || (size >= 0 && view->len != size * view->itemsize)) return NULL;
    return view->buf;
}

static Size size_of(const Arrays *arrays, int at) { return arrays->views[at].len / arrays->views[at].itemsize; }

/* The last dim of an array that has been taken, 1 if there is none. */
static Size width_of(const Arrays *arrays, int at) {
    if (at >= arrays->count || !arrays->views[at].ndim) return 1;
    return arrays->views[at].shape[arrays->views[at].ndim - 1];
}

/* Numbers from Python, rounded to float32; 0 with an exception set if one is none. */
static int numbers(PyObject *const *values, int count, float *out) {
    for (int at = 0; at < count; at++) {
        double number = PyFloat_AsDouble(values[at]);
        if (number == -1.0 && PyErr_Occurred()) return 0;
        out[at] = (float)number;
    }
    return 1;
}

static int has_arguments(Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%zd arguments are needed, not %zd", wanted, given);
    return 0;
}

#define RUN(n, call)               \
    do {                           \
        if ((n) >= MANY) {         \
            Py_BEGIN_ALLOW_THREADS \
            call;                  \
            Py_END_ALLOW_THREADS   \
        } else {                   \
            call;                  \
        }                          \
    } while (0)

static PyObject *finish(Arrays *arrays, int done) {
    release(arrays);
    return PyBool_FromLong(done);
}

static PyObject *py_sgd(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    float rate;
    if (!has_arguments(given, 4) || !numbers(a + 3, 1, &rate)) return NULL;
    Arrays arrays = {.count = 0};
    float *p = memory(&arrays, a[0], 'f', 0, -1);
    Size n = p ? size_of(&arrays, 0) : 0;
    float *g = p ? memory(&arrays, a[1], 'f', 0, n) : NULL;
    float *new = g ? memory(&arrays, a[2], 'f', 1, n) : NULL;
    if (new) RUN(n, sgd(n, p, g, new, rate));
    return finish(&arrays, new != NULL);
}

static PyObject *py_momentum(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    float scales[2];
    if (!has_arguments(given, 7) || !numbers(a + 4, 2, scales)) return NULL;
    int ahead = PyObject_IsTrue(a[6]);
    if (ahead < 0) return NULL;
    Arrays arrays = {.count = 0};
    float *p = memory(&arrays, a[0], 'f', 0, -1);
    Size n = p ? size_of(&arrays, 0) : 0;
    float *g = p ? memory(&arrays, a[1], 'f', 0, n) : NULL;
    float *v = g ? memory(&arrays, a[2], 'f', 1, n) : NULL;
    float *new = v ? memory(&arrays, a[3], 'f', 1, n) : NULL;
    if (new) RUN(n, (ahead ? nesterov : momentum)(n, p, g, v, new, scales[0], scales[1]));
    return finish(&arrays, new != NULL);
}

static PyObject *py_adam(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    float scales[6];
    if (!has_arguments(given, 11) || !numbers(a + 5, 6, scales)) return NULL;
    Arrays arrays = {.count = 0};
    float *p = memory(&arrays, a[0], 'f', 0, -1);
    Size n = p ? size_of(&arrays, 0) : 0;
    float *g = p ? memory(&arrays, a[1], 'f', 0, n) : NULL;
    float *m = g ? memory(&arrays, a[2], 'f', 1, n) : NULL;
    float *v = m ? memory(&arrays, a[3], 'f', 1, n) : NULL;
    float *new = v ? memory(&arrays, a[4], 'f', 1, n) : NULL;
    if (new) RUN(n, adam(n, p, g, m, v, new, scales));
    return finish(&arrays, new != NULL);
}

static PyObject *py_adagrad(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    float scales[2];
    if (!has_arguments(given, 5) || !numbers(a + 3, 2, scales)) return NULL;
    Arrays arrays = {.count = 0};
    float *p = memory(&arrays, a[0], 'f', 1, -1);
    Size n = p ? size_of(&arrays, 0) : 0;
    float *g = p ? memory(&arrays, a[1], 'f', 0, n) : NULL;
    float *m = g ? memory(&arrays, a[2], 'f', 1, n) : NULL;
    if (m) RUN(n, adagrad(n, p, g, m, scales[0], scales[1]));
    return finish(&arrays, m != NULL);
}

typedef void Slope(Size n, const float *y, const float *dy, float *out);

static PyObject *py_slope(Slope *slope, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 3)) return NULL;
    Arrays arrays = {.count = 0};
    float *y = memory(&arrays, a[0], 'f', 0, -1);
    Size n = y ? size_of(&arrays, 0) : 0;
    float *dy = y ? memory(&arrays, a[1], 'f', 0, n) : NULL;
    float *out = dy ? memory(&arrays, a[2], 'f', 1, n) : NULL;
    if (out) RUN(n, slope(n, y, dy, out));
    return finish(&arrays, out != NULL);
}

static PyObject *py_tanh_grad(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    return py_slope(tanh_grad, a, given);
}

static PyObject *py_sigmoid_grad(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    return py_slope(sigmoid_grad, a, given);
}

static PyObject *py_relu_grad(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    return py_slope(relu_grad, a, given);
}

static PyObject *py_below_largest(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    float least;
    if (!has_arguments(given, 3) || !numbers(a + 2, 1, &least)) return NULL;
    Arrays arrays = {.count = 0};
    float *x = memory(&arrays, a[0], 'f', 0, -1);
    Size n = x ? size_of(&arrays, 0) : 0, width = width_of(&arrays, 0);
    float *out = n ? memory(&arrays, a[1], 'f', 1, n) : NULL;
    if (out) RUN(n, below_largest(n / width, width, x, out, least));
    return finish(&arrays, out != NULL);
}

static PyObject *py_negative_within(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    float limit;
    if (!has_arguments(given, 3) || !numbers(a + 2, 1, &limit)) return NULL;
    Arrays arrays = {.count = 0};
    float *x = memory(&arrays, a[0], 'f', 0, -1);
    Size n = x ? size_of(&arrays, 0) : 0;
    float *out = x ? memory(&arrays, a[1], 'f', 1, n) : NULL;
    if (out) RUN(n, negative_within(n, x, out, limit));
    return finish(&arrays, out != NULL);
}

static PyObject *py_sum_all(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 2)) return NULL;
    Arrays arrays = {.count = 0};
    const float *x = memory(&arrays, a[0], 'f', 0, -1);
    const Size n = x ? size_of(&arrays, 0) : 0;
    float *out = n ? memory(&arrays, a[1], 'f', 1, 1) : NULL, sum = 0.0f;
    if (out) RUN(n, sum = sum_of_row(n, x));
    const int done = out && sum != 0.0f; /* numpy's releases give zeros of different signs */
    if (done) *out = sum;
    return finish(&arrays, done);
}

static PyObject *py_erf(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 4)) return NULL;
    double steps = PyFloat_AsDouble(a[3]);
    if (steps == -1.0 && PyErr_Occurred()) return NULL;
    Arrays arrays = {.count = 0};
    float *x = memory(&arrays, a[0], 'f', 0, -1);
    Size n = x ? size_of(&arrays, 0) : 0;
    float *out = x ? memory(&arrays, a[1], 'f', 1, n) : NULL;
    double *table = out ? memory(&arrays, a[2], 'd', 0, -1) : NULL;
    Size points = table ? width_of(&arrays, 2) : 1;
    int done = table && size_of(&arrays, 2) == 3 * points && steps > 0;
    if (done) RUN(n, error_function(n, x, out, table, points, steps));
    return finish(&arrays, done);
}

/* The first fields of numpy's PyUFuncObject. */
typedef struct {
    PyObject_HEAD
    int inputs, outputs, arguments, identity;
    Inner **functions;
    void **data;
    int count, reserved;
    const char *name, *types;
} Ufunc;

#define FLOAT32 11 /* numpy's numbers of types */
#define FLOAT64 12

/* numpy's function of a name and so many arguments for a type; it has none if `run` is NULL. */
static Function function_of(PyObject *value, const char *name, int arguments, char type) {
    Function found = {NULL, NULL};
    const Ufunc *ufunc = (const Ufunc *)value;
    if (strcmp(Py_TYPE(value)->tp_name, "numpy.ufunc") || Py_TYPE(value)->tp_basicsize < (Py_ssize_t)sizeof(Ufunc) ||
        ufunc->arguments != arguments || ufunc->outputs != 1 || ufunc->inputs != arguments - 1 ||
        strcmp(ufunc->name, name)) {
        return found;
    }
    for (int at = 0; at < ufunc->count; at++) {
        int fits = 1;
        for (int place = 0; place < arguments; place++) fits &= ufunc->types[at * arguments + place] == type;
        if (fits) return (Function){ufunc->functions[at], ufunc->data[at]};
    }
    return found;
}

static PyObject *py_use_numpy(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 4)) return NULL;
    numpys.exp = function_of(a[0], "exp", 2, FLOAT32);
    numpys.exp_of_double = function_of(a[0], "exp", 2, FLOAT64);
    numpys.log = function_of(a[1], "log", 2, FLOAT32);
    numpys.log_of_double = function_of(a[1], "log", 2, FLOAT64);
    numpys.tanh = function_of(a[2], "tanh", 2, FLOAT32);
    numpys.matmul = function_of(a[3], "matmul", 3, FLOAT32);
    if (!numpys.exp.run || !numpys.exp_of_double.run || !numpys.log.run || !numpys.log_of_double.run ||
        !numpys.tanh.run) {
        numpys.matmul.run = NULL; /* all of them, or none */
    }
    return PyBool_FromLong(numpys.matmul.run != NULL);
}

static PyObject *py_softmax(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    float least;
    if (!has_arguments(given, 3) || !numbers(a + 2, 1, &least)) return NULL;
    Arrays arrays = {.count = 0};
    const float *x = numpys.matmul.run ? memory(&arrays, a[0], 'f', 0, -1) : NULL;
    const Size n = x ? size_of(&arrays, 0) : 0, width = width_of(&arrays, 0);
    float *out = n ? memory(&arrays, a[1], 'f', 1, n) : NULL, *sums = NULL;
    if (out) sums = PyMem_Malloc(n / width * sizeof *sums);
    if (sums) RUN(n, softmax(n / width, width, x, out, least, sums));
    PyMem_Free(sums);
    return finish(&arrays, sums != NULL);
}

/* The memory of an array as `memory` gives it, or NULL for None; `fits` becomes 0 for any other value. */
static float *optional(Arrays *arrays, PyObject *value, Size size, int *fits) {
    float *found = value == Py_None ? NULL : memory(arrays, value, 'f', 0, size);
    if (!found && value != Py_None) *fits = 0;
    return found;
}

/* Whether a value is an array of float32 of these dims, as a matrix. */
static int is_matrix(Arrays *arrays, PyObject *value, Size rows, Size columns, Matrix *matrix) {
    Py_buffer *view = &arrays->views[arrays->count];
    if (PyObject_GetBuffer(value, view, PyBUF_STRIDES | PyBUF_FORMAT)) {
        PyErr_Clear();
        return 0;
    }
    arrays->count++;
    const Size size = sizeof(float);
    if (!is_kind(view->format, 'f') || view->ndim != 2 || view->shape[0] != rows || view->shape[1] != columns ||
        view->strides[0] % size || view->strides[1] % size) {
        return 0;
    }
    *matrix = (Matrix){view->buf, view->strides[0] / size, view->strides[1] / size};
    return 1;
}

/* Whether arrays of int64 are steps of so many rows and sequences: all rows once, and no step larger than the one
   before. */
static int are_steps(Arrays *arrays, PyObject *starts, PyObject *rows, Size all, Size sequences, Steps *steps) {
    steps->starts = memory(arrays, starts, 'q', 0, -1);
    steps->count = steps->starts ? size_of(arrays, arrays->count - 1) - 1 : -1;
    steps->rows = steps->count >= 0 ? memory(arrays, rows, 'q', 0, all) : NULL;
    steps->sequences = sequences;
    if (!steps->rows || steps->starts[0] || steps->starts[steps->count] != all) return 0;
    for (Size step = 0, most = sequences; step < steps->count; step++) {
        const Size count = steps->starts[step + 1] - steps->starts[step];
        if (count < 1 || count > most) return 0;
        most = count;
    }
    for (Size place = 0; place < all; place++) {
        if (steps->rows[place] < 0 || steps->rows[place] >= all) return 0;
    }
    return 1;
}

#define TAKE(target, call) (done = done && (target = (call)) != NULL)

static PyObject *py_gru(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 12)) return NULL;
    Arrays arrays = {.count = 0};
    Gru g = {.origin = PyObject_IsTrue(a[7])};
    g.first = memory(&arrays, a[4], 'f', 0, -1);
    const Size first = g.first ? size_of(&arrays, 0) : 0, h = g.width = width_of(&arrays, 0);
    int done = numpys.matmul.run && first > 0;
    TAKE(g.x, memory(&arrays, a[0], 'f', 0, -1));
    const Size all = done ? size_of(&arrays, 1) / (3 * h) : 0;
    if (done) g.bias = optional(&arrays, a[1], 3 * h, &done);
    done = done && is_matrix(&arrays, a[2], h, 2 * h, &g.gate) && is_matrix(&arrays, a[3], h, h, &g.candidate);
    done = done && are_steps(&arrays, a[5], a[6], all, first / h, &g.steps);
    TAKE(g.gates, memory(&arrays, a[8], 'f', 1, all * 3 * h));
    TAKE(g.reset, memory(&arrays, a[9], 'f', 1, all * h));
    TAKE(g.hidden, memory(&arrays, a[10], 'f', 1, all * h));
    TAKE(g.out, memory(&arrays, a[11], 'f', 1, all * h));
    TAKE(g.spare, PyMem_Malloc(5 * first * sizeof(float)));
    if (done) RUN(all * h, gru(&g));
    PyMem_Free(g.spare);
    return finish(&arrays, done);
}

static PyObject *py_gru_back(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 16)) return NULL;
    Arrays arrays = {.count = 0};
    GruBack g = {.origin = PyObject_IsTrue(a[8])};
    g.first = memory(&arrays, a[3], 'f', 0, -1);
    const Size first = g.first ? size_of(&arrays, 0) : 0, h = g.width = width_of(&arrays, 0);
    int done = numpys.matmul.run && first > 0;
    TAKE(g.gates, memory(&arrays, a[0], 'f', 0, -1));
    const Size all = done ? size_of(&arrays, 1) / (3 * h) : 0;
    TAKE(g.hidden, memory(&arrays, a[1], 'f', 0, all * h));
    TAKE(g.grad, memory(&arrays, a[2], 'f', 0, all * h));
    done = done && is_matrix(&arrays, a[4], 2 * h, h, &g.gate) && is_matrix(&arrays, a[5], h, h, &g.candidate);
    done = done && are_steps(&arrays, a[6], a[7], all, first / h, &g.steps);
    TAKE(g.carried, memory(&arrays, a[9], 'f', 1, first));
    TAKE(g.before, memory(&arrays, a[10], 'f', 1, all * h));
    TAKE(g.gates_grad, memory(&arrays, a[11], 'f', 1, all * 3 * h));
    TAKE(g.x_grad, memory(&arrays, a[12], 'f', 1, all * 3 * h));
    TAKE(g.reset, memory(&arrays, a[13], 'f', 0, all * h));
    TAKE(g.weight_grad, memory(&arrays, a[14], 'f', 1, 3 * h * h));
    TAKE(g.bias_grad, memory(&arrays, a[15], 'f', 1, 3 * h));
    done = done && all > 0;
    TAKE(g.spare, PyMem_Malloc(first * sizeof(float)));
    if (done) RUN(all * h, gru_back(&g));
    PyMem_Free(g.spare);
    return finish(&arrays, done);
}

static PyObject *py_lstm(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 16)) return NULL;
    Arrays arrays = {.count = 0};
    Lstm l = {.tanh_of_projection = PyObject_IsTrue(a[9])};
    l.first = memory(&arrays, a[5], 'f', 0, -1);
    const Size s = l.state = width_of(&arrays, 0), sequences = l.first && s ? size_of(&arrays, 0) / s : 0;
    int done = numpys.matmul.run && sequences > 0;
    TAKE(l.first_cell, memory(&arrays, a[6], 'f', 0, -1));
    const Size h = l.width = done ? width_of(&arrays, 1) : 1;
    done = done && h && size_of(&arrays, 1) == sequences * h;
    TAKE(l.x, memory(&arrays, a[0], 'f', 0, -1));
    const Size all = done ? size_of(&arrays, 2) / (4 * h) : 0;
    TAKE(l.bias, memory(&arrays, a[1], 'f', 0, 4 * h));
    if (done) l.peepholes = optional(&arrays, a[2], 3 * h, &done);
    done = done && is_matrix(&arrays, a[3], s, 4 * h, &l.weight);
    if (a[4] != Py_None) done = done && is_matrix(&arrays, a[4], h, s, &l.projection);
    done = done && are_steps(&arrays, a[7], a[8], all, sequences, &l.steps);
    TAKE(l.gates, memory(&arrays, a[10], 'f', 1, all * 4 * h));
    TAKE(l.active, memory(&arrays, a[11], 'f', 1, all * h));
    TAKE(l.hidden, memory(&arrays, a[12], 'f', 1, all * h));
    TAKE(l.outputs, memory(&arrays, a[13], 'f', 1, all * s));
    TAKE(l.out, memory(&arrays, a[14], 'f', 1, all * s));
    TAKE(l.cells, memory(&arrays, a[15], 'f', 1, all * h));
    done = done && (l.projection.first || s == h);
    TAKE(l.spare, PyMem_Malloc(9 * sequences * h * sizeof(float)));
    if (done) RUN(all * h, lstm(&l));
    PyMem_Free(l.spare);
    return finish(&arrays, done);
}

static PyObject *py_lstm_back(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 20)) return NULL;
    Arrays arrays = {.count = 0};
    LstmBack l = {.tanh_of_projection = PyObject_IsTrue(a[11])};
    l.first = memory(&arrays, a[5], 'f', 0, -1);
    const Size s = l.state = width_of(&arrays, 0), sequences = l.first && s ? size_of(&arrays, 0) / s : 0;
    int done = numpys.matmul.run && sequences > 0;
    TAKE(l.first_cell, memory(&arrays, a[6], 'f', 0, -1));
    const Size h = l.width = done ? width_of(&arrays, 1) : 1;
    done = done && h && size_of(&arrays, 1) == sequences * h;
    TAKE(l.gates, memory(&arrays, a[0], 'f', 0, -1));
    const Size all = done ? size_of(&arrays, 2) / (4 * h) : 0;
    TAKE(l.cells, memory(&arrays, a[1], 'f', 0, all * h));
    TAKE(l.active, memory(&arrays, a[2], 'f', 0, all * h));
    TAKE(l.outputs, memory(&arrays, a[3], 'f', 0, all * s));
    TAKE(l.grad, memory(&arrays, a[4], 'f', 0, all * s));
    done = done && is_matrix(&arrays, a[7], 4 * h, s, &l.weight);
    if (a[8] != Py_None) done = done && is_matrix(&arrays, a[8], s, h, &l.projection);
    done = done && are_steps(&arrays, a[9], a[10], all, sequences, &l.steps);
    if (done) l.peepholes = optional(&arrays, a[12], 3 * h, &done);
    TAKE(l.state_grad, memory(&arrays, a[13], 'f', 1, sequences * s));
    TAKE(l.cell_grad, memory(&arrays, a[14], 'f', 1, sequences * h));
    TAKE(l.before, memory(&arrays, a[15], 'f', 1, all * s));
    TAKE(l.cells_before, memory(&arrays, a[16], 'f', 1, all * h));
    TAKE(l.projected, memory(&arrays, a[17], 'f', 1, all * s));
    TAKE(l.gates_grad, memory(&arrays, a[18], 'f', 1, all * 4 * h));
    TAKE(l.x_grad, memory(&arrays, a[19], 'f', 1, all * 4 * h));
    done = done && (l.projection.first || s == h);
    TAKE(l.spare, PyMem_Malloc(sequences * h * sizeof(float)));
    if (done) RUN(all * h, lstm_back(&l));
    PyMem_Free(l.spare);
    return finish(&arrays, done);
}

static PyObject *py_lstm_bias_grad(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 5)) return NULL;
    Arrays arrays = {.count = 0};
    const float *gates, *before, *cells = memory(&arrays, a[2], 'f', 0, -1);
    const Size n = cells ? size_of(&arrays, 0) : 0, h = width_of(&arrays, 0);
    int done = n > 0 && h > 1; /* numpy adds up a single column in another order */
    const int64_t *rows;
    float *out;
    TAKE(gates, memory(&arrays, a[0], 'f', 0, 4 * n));
    TAKE(before, memory(&arrays, a[1], 'f', 0, n));
    TAKE(rows, memory(&arrays, a[3], 'q', 0, n / h));
    TAKE(out, memory(&arrays, a[4], 'f', 1, 7 * h));
    for (Size place = 0; done && place < n / h; place++) done = rows[place] >= 0 && rows[place] < n / h;
    if (done) RUN(n, lstm_bias_grad(n / h, h, gates, before, cells, rows, out));
    return finish(&arrays, done);
}

static PyObject *py_lstm_unit(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    float bias;
    if (!has_arguments(given, 5) || !numbers(a + 2, 1, &bias)) return NULL;
    Arrays arrays = {.count = 0};
    const float *before = memory(&arrays, a[1], 'f', 0, -1), *x;
    const Size n = before ? size_of(&arrays, 0) : 0, h = width_of(&arrays, 0);
    float *cell, *hidden, *spare = NULL;
    int done = numpys.matmul.run && n > 0;
    TAKE(x, memory(&arrays, a[0], 'f', 0, 4 * n));
    TAKE(cell, memory(&arrays, a[3], 'f', 1, n));
    TAKE(hidden, memory(&arrays, a[4], 'f', 1, n));
    TAKE(spare, PyMem_Malloc(4 * n * sizeof(float)));
    if (done) RUN(n, lstm_unit(n / h, h, x, before, bias, cell, hidden, spare));
    PyMem_Free(spare);
    return finish(&arrays, done);
}

static PyObject *py_lstm_unit_back(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    float bias;
    if (!has_arguments(given, 8) || !numbers(a + 5, 1, &bias)) return NULL;
    Arrays arrays = {.count = 0};
    LstmUnitBack u = {.before = memory(&arrays, a[1], 'f', 0, -1)};
    const Size n = u.before ? size_of(&arrays, 0) : 0, h = width_of(&arrays, 0);
    int done = numpys.matmul.run && n > 0;
    TAKE(u.x, memory(&arrays, a[0], 'f', 0, 4 * n));
    TAKE(u.cell, memory(&arrays, a[2], 'f', 0, n));
    TAKE(u.cell_grad, memory(&arrays, a[3], 'f', 0, n));
    TAKE(u.hidden_grad, memory(&arrays, a[4], 'f', 0, n));
    TAKE(u.x_grad, memory(&arrays, a[6], 'f', 1, 4 * n));
    TAKE(u.before_grad, memory(&arrays, a[7], 'f', 1, n));
    TAKE(u.spare, PyMem_Malloc(5 * n * sizeof(float)));
    if (done) RUN(n, lstm_unit_back(n / h, h, bias, &u));
    PyMem_Free(u.spare);
    return finish(&arrays, done);
}

/* Offsets of so many rows, int64, none of whose sequences is empty; NULL for others. */
static const int64_t *runs_of(Arrays *arrays, PyObject *value, Size rows, Size *count) {
    const int64_t *offsets = memory(arrays, value, 'q', 0, -1);
    *count = offsets ? size_of(arrays, arrays->count - 1) - 1 : -1;
    if (*count < 0 || offsets[0] || offsets[*count] != rows) return NULL;
    for (Size run = 0; run < *count; run++) {
        if (offsets[run + 1] <= offsets[run]) return NULL;
    }
    return offsets;
}

static PyObject *py_largest_of_runs(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 4)) return NULL;
    Arrays arrays = {.count = 0};
    const float *x = memory(&arrays, a[0], 'f', 0, -1);
    const Size n = x ? size_of(&arrays, 0) : 0, rows = n && arrays.views[0].ndim ? arrays.views[0].shape[0] : 0;
    int done = rows > 0 && rows < INT32_MAX;
    const int64_t *offsets;
    float *out;
    int32_t *places;
    Size runs = 0;
    TAKE(offsets, runs_of(&arrays, a[1], rows, &runs));
    TAKE(out, memory(&arrays, a[2], 'f', 1, runs * (n / rows)));
    TAKE(places, memory(&arrays, a[3], 'i', 1, runs * (n / rows)));
    if (done) RUN(n, largest_of_runs(runs, offsets, n / rows, x, out, places));
    return finish(&arrays, done);
}

#define MOST_ROWS_OF_RUN 129 /* numpy adds up more in two halves */

static PyObject *py_sum_runs(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    float zero;
    if (!has_arguments(given, 4) || !numbers(a + 3, 1, &zero)) return NULL;
    Arrays arrays = {.count = 0};
    const float *x = memory(&arrays, a[0], 'f', 0, -1);
    const Size n = x ? size_of(&arrays, 0) : 0, rows = n && arrays.views[0].ndim ? arrays.views[0].shape[0] : 0;
    const int64_t *starts = rows ? memory(&arrays, a[1], 'q', 0, -1) : NULL;
    const Size runs = starts ? size_of(&arrays, 1) : 0, width = rows ? n / rows : 0;
    float *out = runs ? memory(&arrays, a[2], 'f', 1, runs * width) : NULL, *spare = NULL;
    int done = out != NULL && starts[0] >= 0;
    for (Size run = 0; done && run < runs; run++) {
        const int64_t end = run + 1 < runs ? starts[run + 1] : rows;
        done = starts[run] < end && end - starts[run] <= MOST_ROWS_OF_RUN;
    }
    TAKE(spare, PyMem_Malloc(8 * (size_t)width * sizeof *spare));
    if (done) RUN(n, sum_runs(runs, starts, rows, width, x, out, zero, spare));
    PyMem_Free(spare);
    return finish(&arrays, done);
}

/* The arguments are rows x, offsets, the first row of a window, its length, and the windows. */
static PyObject *py_windows_of_runs(int back, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 5)) return NULL;
    const Size start = PyLong_AsSsize_t(a[2]), length = PyLong_AsSsize_t(a[3]);
    if (PyErr_Occurred()) return NULL;
    Arrays arrays = {.count = 0};
    float *x = memory(&arrays, a[0], 'f', back, -1);
    const Size n = x ? size_of(&arrays, 0) : 0, rows = n && arrays.views[0].ndim ? arrays.views[0].shape[0] : 0;
    int done = rows > 0 && length > 0 && length < INT32_MAX && start > -INT32_MAX && start < INT32_MAX;
    const int64_t *offsets;
    float *windows;
    Size runs = 0;
    TAKE(offsets, runs_of(&arrays, a[1], rows, &runs));
    TAKE(windows, memory(&arrays, a[4], 'f', !back, n * length));
    if (done) {
        if (back) {
            RUN(n * length, windows_back(runs, offsets, n / rows, start, length, windows, x));
        } else {
            RUN(n * length, windows_of_runs(runs, offsets, n / rows, start, length, x, windows));
        }
    }
    return finish(&arrays, done);
}

static PyObject *py_unfold_runs(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    return py_windows_of_runs(0, a, given);
}

static PyObject *py_fold_runs(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    return py_windows_of_runs(1, a, given);
}

static int are_classes(Size rows, const int64_t *labels, Size classes, int64_t ignored);

/* Takes what both directions have in common: the label of each row, the offsets of sequences, which may be empty, and
   the steps. `x` and the transitions, which the first two arrays hold, have been taken. */
static int take_chains(Chains *c, Arrays *arrays, PyObject *const *a) {
    const Size n = size_of(arrays, 0), k = c->labels = width_of(arrays, 0), all = k ? n / k : 0;
    if (!numpys.matmul.run || k < 2 || !all || size_of(arrays, 1) != (k + 2) * k) return 0;
    c->path = memory(arrays, a[0], 'q', 0, all);
    c->offsets = c->path ? memory(arrays, a[1], 'q', 0, -1) : NULL;
    c->runs = c->offsets ? size_of(arrays, arrays->count - 1) - 1 : 0;
    if (c->runs < 1 || c->offsets[0] || c->offsets[c->runs] != all || !are_classes(all, c->path, k, -1)) return 0;
    Size filled = 0;
    for (Size run = 0; run < c->runs; run++) {
        if (c->offsets[run + 1] < c->offsets[run]) return 0;
        filled += c->offsets[run + 1] > c->offsets[run];
    }
    return are_steps(arrays, a[2], a[3], all, filled, &c->steps) && c->steps.starts[1] == filled;
}

/* The arguments are x, transitions, labels, offsets, starts and rows of steps; exps, w_exps, out, logs and lasts. */
static PyObject *py_chains_ahead(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 11)) return NULL;
    Arrays arrays = {.count = 0};
    Chains c = {.every = 1};
    int done = 1;
    TAKE(c.x, memory(&arrays, a[0], 'f', 0, -1));
    TAKE(c.w, memory(&arrays, a[1], 'f', 0, -1));
    done = done && take_chains(&c, &arrays, a + 2);
    const Size k = c.labels, all = done ? c.offsets[c.runs] : 0;
    TAKE(c.exps, memory(&arrays, a[6], 'f', 1, all * k));
    TAKE(c.w_exps, memory(&arrays, a[7], 'f', 1, (k + 2) * k));
    TAKE(c.out, memory(&arrays, a[8], 'f', 1, all * k));
    TAKE(c.logs, memory(&arrays, a[9], 'f', 1, all));
    TAKE(c.lasts, memory(&arrays, a[10], 'f', 1, c.steps.sequences * k));
    TAKE(c.spare, PyMem_Malloc((2 * c.steps.sequences * k + k * k + 3 * all) * sizeof(float)));
    if (done) RUN(all * k, chains_ahead(&c));
    PyMem_Free(c.spare);
    return finish(&arrays, done);
}

/* The arguments are the exponentials of x and of transitions, labels, offsets, starts and rows of steps; alpha, the
   gradient of each sequence, and the gradients of x and of transitions. */
static PyObject *py_chains_back(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 10)) return NULL;
    Arrays arrays = {.count = 0};
    Chains c = {.every = 1};
    int done = 1;
    TAKE(c.x, memory(&arrays, a[0], 'f', 0, -1));
    TAKE(c.w, memory(&arrays, a[1], 'f', 0, -1));
    done = done && take_chains(&c, &arrays, a + 2);
    const Size k = c.labels, all = done ? c.offsets[c.runs] : 0;
    done = done && all - c.steps.sequences > 1; /* numpy multiplies a single row in another way */
    TAKE(c.alpha, memory(&arrays, a[6], 'f', 0, all * k));
    TAKE(c.run_grads, memory(&arrays, a[7], 'f', 0, c.runs));
    TAKE(c.grad, memory(&arrays, a[8], 'f', 1, all * k));
    TAKE(c.w_grad, memory(&arrays, a[9], 'f', 1, (k + 2) * k));
    TAKE(c.spare, PyMem_Malloc((2 * c.steps.sequences * k + 2 * k * k + 4 * all * k) * sizeof(float)));
    if (done) RUN(all * k, chains_back(&c));
    PyMem_Free(c.spare);
    return finish(&arrays, done);
}

static PyObject *py_best_path(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 7)) return NULL;
    const Size sequences = PyLong_AsSsize_t(a[5]);
    if (PyErr_Occurred()) return NULL;
    Arrays arrays = {.count = 0};
    const float *x = memory(&arrays, a[0], 'f', 0, -1), *ends, *into;
    const Size n = x ? size_of(&arrays, 0) : 0, k = width_of(&arrays, 0);
    int done = n > 0;
    Steps steps;
    int64_t *path;
    float *scores = NULL;
    TAKE(ends, memory(&arrays, a[1], 'f', 0, 2 * k));
    TAKE(into, memory(&arrays, a[2], 'f', 0, k * k));
    done = done && are_steps(&arrays, a[3], a[4], n / k, sequences, &steps);
    TAKE(path, memory(&arrays, a[6], 'q', 1, n / k));
    TAKE(scores, PyMem_Malloc(n * sizeof(float)));
    if (done) RUN(n * k, best_path(&steps, k, x, ends, into, scores, path));
    PyMem_Free(scores);
    return finish(&arrays, done);
}

/* Batch normalisation: the arguments are `wide` arrays like x, then `narrow` ones of a value for each channel, dim 1 of
   x, and last what is written. */
typedef struct {
    Dims dims;
    const float *wide[2], *narrow[5];
    float *out;
} Norm;

static int take_norm(Norm *norm, Arrays *arrays, PyObject *const *a, int wide, int narrow) {
    norm->wide[0] = memory(arrays, a[0], 'f', 0, -1);
    const Py_buffer *view = &arrays->views[0];
    if (!norm->wide[0] || view->ndim < 2 || !view->len) return 0;
    const Size n = size_of(arrays, 0);
    norm->dims = (Dims){view->shape[0], view->shape[1], n / (view->shape[0] * view->shape[1])};
    if (norm->dims.elements < NARROW) return 0; /* numpy is faster */
    for (int at = 1; at < wide; at++) {
        if (!(norm->wide[at] = memory(arrays, a[at], 'f', 0, n))) return 0;
    }
    for (int at = 0; at < narrow; at++) {
        if (!(norm->narrow[at] = memory(arrays, a[wide + at], 'f', 0, norm->dims.channels))) return 0;
    }
    return (norm->out = memory(arrays, a[wide + narrow], 'f', 1, n)) != NULL;
}

static PyObject *py_scale_channels(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 4)) return NULL;
    Arrays arrays = {.count = 0};
    Norm n;
    int done = take_norm(&n, &arrays, a, 1, 2);
    if (done) RUN(size_of(&arrays, 0), scale_channels(n.dims, n.wide[0], n.narrow[0], n.narrow[1], n.out));
    return finish(&arrays, done);
}

static PyObject *py_squares(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 3)) return NULL;
    Arrays arrays = {.count = 0};
    Norm n;
    int done = take_norm(&n, &arrays, a, 1, 1);
    if (done) RUN(size_of(&arrays, 0), squares(n.dims, n.wide[0], n.narrow[0], n.out));
    return finish(&arrays, done);
}

static PyObject *py_norm_products(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 5)) return NULL;
    Arrays arrays = {.count = 0};
    Norm n;
    int done = take_norm(&n, &arrays, a, 2, 2);
    if (done) {
        RUN(size_of(&arrays, 0), norm_products(n.dims, n.wide[0], n.wide[1], n.narrow[0], n.narrow[1], n.out));
    }
    return finish(&arrays, done);
}

static PyObject *py_norm_grad(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 8)) return NULL;
    Arrays arrays = {.count = 0};
    Norm n;
    int done = take_norm(&n, &arrays, a, 2, 5);
    if (done) RUN(size_of(&arrays, 0), norm_grad(n.dims, n.wide[0], n.wide[1], n.narrow, n.out));
    return finish(&arrays, done);
}

/* Convolutions: the arguments are the images, the windows, and the fourteen numbers of Windows. */
static PyObject *py_windows(int into_images, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 3)) return NULL;
    Arrays arrays = {.count = 0};
    const Windows *w = memory(&arrays, a[2], 'q', 0, sizeof(Windows) / sizeof(int64_t));
    int fits = w && w->images >= 0 && w->channels >= 0 && w->height >= 0 && w->width >= 0 && w->rows >= 0 &&
               w->columns >= 0 && w->down >= 0 && w->right >= 0 && w->step[0] > 0 && w->step[1] > 0 &&
               w->spread[0] > 0 && w->spread[1] > 0 && w->padding[0] >= 0 && w->padding[1] >= 0;
    Size images = fits ? (Size)(w->images * w->channels) : 0;
    Size places = fits ? (Size)(w->rows * w->columns * w->down * w->right) : 0;
    float *x = fits ? memory(&arrays, a[0], 'f', into_images, images * (Size)(w->height * w->width)) : NULL;
    float *windows = x ? memory(&arrays, a[1], 'f', !into_images, images * places) : NULL;
    if (windows && into_images) RUN(images * places, fold(w, windows, x));
    if (windows && !into_images) RUN(images * places, unfold(w, x, windows));
    return finish(&arrays, windows != NULL);
}

static PyObject *py_unfold(PyObject *self, PyObject *const *a, Py_ssize_t given) { return py_windows(0, a, given); }

static PyObject *py_fold(PyObject *self, PyObject *const *a, Py_ssize_t given) { return py_windows(1, a, given); }

static PyObject *py_sum_rows(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 2)) return NULL;
    Arrays arrays = {.count = 0};
    const float *x = memory(&arrays, a[0], 'f', 0, -1);
    const Size n = x ? size_of(&arrays, 0) : 0;
    float *sums = n ? memory(&arrays, a[1], 'f', 1, -1) : NULL;
    const Size width = sums ? size_of(&arrays, 1) : 0;
    const int done = width > 1 && n % width == 0; /* numpy adds up a single column in another order */
    if (done) RUN(n, sum_rows(n / width, width, x, sums));
    return finish(&arrays, done);
}

static PyObject *py_shares(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 2)) return NULL;
    Arrays arrays = {.count = 0};
    float *x = memory(&arrays, a[0], 'f', 1, -1);
    Size n = x ? size_of(&arrays, 0) : 0, width = width_of(&arrays, 0);
    float *sums = n ? memory(&arrays, a[1], 'f', 1, n / width) : NULL;
    if (sums) RUN(n, shares(n / width, width, x, sums));
    return finish(&arrays, sums != NULL);
}

static PyObject *py_softmax_grad(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 3)) return NULL;
    Arrays arrays = {.count = 0};
    float *y = memory(&arrays, a[0], 'f', 0, -1);
    Size n = y ? size_of(&arrays, 0) : 0, width = width_of(&arrays, 0);
    float *dy = n ? memory(&arrays, a[1], 'f', 0, n) : NULL;
    float *out = dy ? memory(&arrays, a[2], 'f', 1, n) : NULL;
    if (out) RUN(n, softmax_grad(n / width, width, y, dy, out));
    return finish(&arrays, out != NULL);
}

/* Whether all labels are classes, and none is ignored. */
static int are_classes(Size rows, const int64_t *labels, Size classes, int64_t ignored) {
    int all = 1;
    for (Size row = 0; row < rows; row++) {
        all &= labels[row] >= 0 && labels[row] < classes && labels[row] != ignored;
    }
    return all;
}

/* out[row] = x[row, labels[row]] */
static PyObject *py_pick(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 4)) return NULL;
    long long ignored = PyLong_AsLongLong(a[3]);
    if (ignored == -1 && PyErr_Occurred()) return NULL;
    Arrays arrays = {.count = 0};
    float *x = memory(&arrays, a[0], 'f', 0, -1);
    Size n = x ? size_of(&arrays, 0) : 0, width = width_of(&arrays, 0), rows = n ? n / width : 0;
    int64_t *labels = n ? memory(&arrays, a[1], 'q', 0, rows) : NULL;
    float *out = labels ? memory(&arrays, a[2], 'f', 1, rows) : NULL;
    int done = out && are_classes(rows, labels, width, ignored);
    for (Size row = 0; done && row < rows; row++) out[row] = x[row * width + labels[row]];
    return finish(&arrays, done);
}

/* out[row, labels[row]] = value[row], and 0 elsewhere */
static PyObject *py_put(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 4)) return NULL;
    long long ignored = PyLong_AsLongLong(a[3]);
    if (ignored == -1 && PyErr_Occurred()) return NULL;
    Arrays arrays = {.count = 0};
    float *out = memory(&arrays, a[0], 'f', 1, -1);
    Size n = out ? size_of(&arrays, 0) : 0, width = width_of(&arrays, 0), rows = n ? n / width : 0;
    int64_t *labels = n ? memory(&arrays, a[1], 'q', 0, rows) : NULL;
    float *value = labels ? memory(&arrays, a[2], 'f', 0, rows) : NULL;
    int done = value && are_classes(rows, labels, width, ignored);
    if (done) memset(out, 0, n * sizeof *out);
    for (Size row = 0; done && row < rows; row++) out[row * width + labels[row]] = value[row];
    return finish(&arrays, done);
}

/* match[row] = x[row, labels[row]]; loss = -log(match), limited as in negative_within */
static PyObject *py_cross_entropy(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    float limit;
    if (!has_arguments(given, 6) || !numbers(a + 5, 1, &limit)) return NULL;
    const long long ignored = PyLong_AsLongLong(a[4]);
    if (ignored == -1 && PyErr_Occurred()) return NULL;
    Arrays arrays = {.count = 0};
    const float *x = numpys.matmul.run ? memory(&arrays, a[0], 'f', 0, -1) : NULL;
    const Size n = x ? size_of(&arrays, 0) : 0, width = width_of(&arrays, 0), rows = n ? n / width : 0;
    const int64_t *labels = n ? memory(&arrays, a[1], 'q', 0, rows) : NULL;
    float *match = labels ? memory(&arrays, a[2], 'f', 1, rows) : NULL;
    float *loss = match ? memory(&arrays, a[3], 'f', 1, rows) : NULL;
    const int done = loss && are_classes(rows, labels, width, ignored);
    for (Size row = 0; done && row < rows; row++) loss[row] = match[row] = x[row * width + labels[row]];
    if (done) {
        of_each(numpys.log, rows, loss);
        negative_within(rows, loss, loss, limit);
    }
    return finish(&arrays, done);
}

/* out[row, labels[row]] = -grad[row] / match[row], and 0 elsewhere */
static PyObject *py_cross_entropy_grad(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 5)) return NULL;
    const long long ignored = PyLong_AsLongLong(a[4]);
    if (ignored == -1 && PyErr_Occurred()) return NULL;
    Arrays arrays = {.count = 0};
    float *out = memory(&arrays, a[0], 'f', 1, -1);
    const Size n = out ? size_of(&arrays, 0) : 0, width = width_of(&arrays, 0), rows = n ? n / width : 0;
    const int64_t *labels = n ? memory(&arrays, a[1], 'q', 0, rows) : NULL;
    const float *grad = labels ? memory(&arrays, a[2], 'f', 0, rows) : NULL;
    const float *match = grad ? memory(&arrays, a[3], 'f', 0, rows) : NULL;
    const int done = match && are_classes(rows, labels, width, ignored);
    if (done) memset(out, 0, n * sizeof *out);
    for (Size row = 0; done && row < rows; row++) out[row * width + labels[row]] = -grad[row] / match[row];
    return finish(&arrays, done);
}

/* The memory of rows of float32, each in one piece, or NULL if they are not `count` (any number, if negative): sets the
   elements of a row, and the elements from the start of one row to the start of the next. */
static float *memory_of_rows(Arrays *arrays, PyObject *value, int written, Size count, Size *width, Size *stride) {
    Py_buffer *view = &arrays->views[arrays->count];
    if (PyObject_GetBuffer(value, view, PyBUF_STRIDES | PyBUF_FORMAT | (written ? PyBUF_WRITABLE : 0))) {
        PyErr_Clear();
        return NULL;
    }
    arrays->count++;
    if (!is_kind(view->format, 'f') || view->ndim < 1 || (count >= 0 && view->shape[0] != count)) return NULL;
    Size size = view->itemsize;
    for (int dim = view->ndim - 1; dim > 0; dim--) {
        if (view->strides[dim] != size && view->shape[dim] != 1) return NULL;
        size *= view->shape[dim];
    }
    if (view->strides[0] < 0 || view->strides[0] % view->itemsize) return NULL;
    *width = size / view->itemsize;
    *stride = view->strides[0] / view->itemsize;
    return view->buf;
}

/* out = zeros, but out[places[i, j], j] = value[i, j]. The places are int32. */
static PyObject *py_put_largest(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 3)) return NULL;
    Arrays arrays = {.count = 0};
    float *out = memory(&arrays, a[0], 'f', 1, -1);
    const Size n = out ? size_of(&arrays, 0) : 0, height = n && arrays.views[0].ndim ? arrays.views[0].shape[0] : 0;
    const Size width = height ? n / height : 1;
    const int32_t *places = height ? memory(&arrays, a[1], 'i', 0, -1) : NULL;
    const Size count = places ? size_of(&arrays, 1) : 0;
    Size wide = 0;
    Table value = {.first = NULL};
    if (places && count % width == 0)
        value.first = memory_of_rows(&arrays, a[2], 0, count / width, &wide, &value.stride);
    int done = value.first && wide == width;
    for (Size at = 0; done && at < count; at++) done = places[at] >= 0 && places[at] < height;
    if (done) memset(out, 0, n * sizeof *out);
    for (Size row = 0; done && row < count / width; row++) {
        const float *from = row_of(value, row);
        for (Size i = 0; i < width; i++) out[places[row * width + i] * width + i] = from[i];
    }
    return finish(&arrays, done);
}

static PyObject *py_add_rows(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 3)) return NULL;
    Arrays arrays = {.count = 0};
    Size width = 0;
    Table target;
    target.first = memory_of_rows(&arrays, a[0], 1, -1, &width, &target.stride);
    Size height = target.first ? arrays.views[0].shape[0] : 0;
    int64_t *rows = height && width ? memory(&arrays, a[1], 'q', 0, -1) : NULL;
    Size count = rows ? size_of(&arrays, 1) : 0;
    float *value = rows ? memory(&arrays, a[2], 'f', 0, count * width) : NULL;
    int done = value != NULL;
    for (Size at = 0; done && at < count; at++) done = rows[at] >= 0 && rows[at] < height;
    if (done) RUN(count * width, add_rows(count, width, target, rows, value));
    return finish(&arrays, done);
}

/* out[i] = table[rows[i]] */
static PyObject *py_take_rows(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 3)) return NULL;
    Arrays arrays = {.count = 0};
    Size width = 0;
    Table table;
    table.first = memory_of_rows(&arrays, a[0], 0, -1, &width, &table.stride);
    const Size height = table.first ? arrays.views[0].shape[0] : 0;
    const int64_t *rows = height && width ? memory(&arrays, a[1], 'q', 0, -1) : NULL;
    const Size count = rows ? size_of(&arrays, 1) : 0;
    float *out = rows ? memory(&arrays, a[2], 'f', 1, count * width) : NULL;
    int done = out != NULL;
    for (Size at = 0; done && at < count; at++) done = rows[at] >= 0 && rows[at] < height;
    if (done) {
        RUN(count * width, for (Size at = 0; at < count; at++)
            memcpy(out + at * width, row_of(table, rows[at]), (size_t)width * sizeof(float)));
    }
    return finish(&arrays, done);
}

static PyObject *py_merge_rows(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 4)) return NULL;
    Arrays arrays = {.count = 0};
    int64_t *rows = memory(&arrays, a[0], 'q', 0, -1);
    Size count = rows ? size_of(&arrays, 0) : 0, different = 0, width = 0;
    if (count > UINT32_MAX) count = 0;
    Table value = {.first = NULL};
    value.first = count ? memory_of_rows(&arrays, a[1], 0, count, &width, &value.stride) : NULL;
    int64_t *merged = value.first ? memory(&arrays, a[2], 'q', 1, count) : NULL;
    float *sums = merged ? memory(&arrays, a[3], 'f', 1, count * width) : NULL;
    uint32_t *order = sums ? PyMem_RawMalloc(2 * count * sizeof *order) : NULL;
    if (order) {
        RUN(count * width, different = merge_rows(count, width, rows, value, order, order + count, merged, sums));
        PyMem_RawFree(order);
    }
    release(&arrays);
    return PyLong_FromSsize_t(different);
}

#define MOST_PARTS_OF_SUM 8

/* The arguments are two tuples, of the rows and of the values of parts; merged and sums. */
static PyObject *py_sum_tables(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 4)) return NULL;
    if (!PyTuple_Check(a[0]) || !PyTuple_Check(a[1])) return PyLong_FromLong(0);
    const Size parts = PyTuple_GET_SIZE(a[0]);
    if (parts < 1 || parts > MOST_PARTS_OF_SUM || PyTuple_GET_SIZE(a[1]) != parts) return PyLong_FromLong(0);
    Arrays arrays = {.count = 0};
    const int64_t *rows_of_part[MOST_PARTS_OF_SUM];
    Table values[MOST_PARTS_OF_SUM];
    Size ends[MOST_PARTS_OF_SUM], count = 0, width = 0, different = 0;
    int done = 1;
    for (Size part = 0; done && part < parts; part++) {
        TAKE(rows_of_part[part], memory(&arrays, PyTuple_GET_ITEM(a[0], part), 'q', 0, -1));
        const Size mine = done ? size_of(&arrays, arrays.count - 1) : 0;
        Size wide = 0;
        TAKE(values[part].first, memory_of_rows(&arrays, PyTuple_GET_ITEM(a[1], part), 0, mine, &wide, &values[part].stride));
        done = done && wide && (!part || wide == width);
        width = wide;
        count += mine;
        ends[part] = count;
    }
    done = done && count && count <= UINT32_MAX;
    int64_t *merged, *rows = NULL;
    float *sums;
    uint32_t *order = NULL;
    TAKE(merged, memory(&arrays, a[2], 'q', 1, count));
    TAKE(sums, memory(&arrays, a[3], 'f', 1, count * width));
    TAKE(rows, PyMem_RawMalloc((size_t)count * sizeof *rows));
    TAKE(order, PyMem_RawMalloc((size_t)(2 * count + width) * sizeof *order));
    if (done) {
        for (Size part = 0, at = 0; part < parts; at = ends[part++])
            memcpy(rows + at, rows_of_part[part], (size_t)(ends[part] - at) * sizeof *rows);
        RUN(count * width, different = sum_tables(count, width, rows, values, ends, order, order + count,
                                                  (float *)(order + 2 * count), merged, sums));
    }
    PyMem_RawFree(order);
    PyMem_RawFree(rows);
    release(&arrays);
    return PyLong_FromSsize_t(different);
}

static PyObject *py_split_rows(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 6)) return NULL;
    Arrays arrays = {.count = 0};
    int64_t *rows = memory(&arrays, a[0], 'q', 0, -1);
    Size count = rows ? size_of(&arrays, 0) : 0, width = 0, stride = 0;
    float *value = count ? memory_of_rows(&arrays, a[1], 0, count, &width, &stride) : NULL;
    Size size = count * width;
    int64_t *ends = value ? memory(&arrays, a[2], 'q', 0, -1) : NULL;
    Size sections = ends ? size_of(&arrays, 2) - 1 : 0;
    int64_t *starts = sections > 0 ? memory(&arrays, a[3], 'q', 1, sections + 1) : NULL;
    int64_t *rows_out = starts ? memory(&arrays, a[4], 'q', 1, count) : NULL;
    float *value_out = rows_out ? memory(&arrays, a[5], 'f', 1, size) : NULL;
    int done = value_out && count <= UINT32_MAX;
    for (Size at = 0; done && at < count; at++) done = rows[at] >= 0 && rows[at] < ends[sections];
    uint32_t *part = done ? PyMem_RawMalloc(count * sizeof *part) : NULL;
    if (part) {
        RUN(size, split_rows(count, width, rows, value, stride, sections, ends, part, starts, rows_out, value_out));
        PyMem_RawFree(part);
    }
    return finish(&arrays, part != NULL);
}

/* An optimizer that updates rows of tables: how many tables and numbers it takes. */
typedef struct {
    int tables, scales;
    void (*run)(const Update *update);
} Optimizer;

enum {
    SGD, MOMENTUM, NESTEROV, ADAGRAD, ADAM, RMSPROP, RMSPROP_OF_ROOT, RMSPROP_CENTERED, RMSPROP_CENTERED_OF_ROOT, FTRL
};

static const Optimizer OPTIMIZERS[] = {
    [SGD] = {1, 1, sgd_rows},
    [MOMENTUM] = {2, 2, momentum_rows},
    [NESTEROV] = {2, 2, nesterov_rows},
    [ADAGRAD] = {2, 2, adagrad_rows},
    [ADAM] = {3, 7, adam_rows},
    [RMSPROP] = {3, 5, rmsprop_rows},
    [RMSPROP_OF_ROOT] = {3, 5, rmsprop_of_root_rows},
    [RMSPROP_CENTERED] = {4, 5, rmsprop_centered_rows},
    [RMSPROP_CENTERED_OF_ROOT] = {4, 5, rmsprop_centered_of_root_rows},
    [FTRL] = {3, 3, ftrl_rows},
};

static int optimizer_of(PyObject *number, Optimizer *optimizer) {
    const long at = PyLong_AsLong(number);
    if (at >= 0 && at < (long)(sizeof OPTIMIZERS / sizeof *OPTIMIZERS)) {
        *optimizer = OPTIMIZERS[at];
        return 1;
    }
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "there is no optimizer of this number");
    return 0;
}

/* Takes the rows (first argument) and the values of a gradient, and the tables that it updates, the parameter first;
   false if they don't fit each other. */
static int update_of(Arrays *arrays, PyObject *const *a, int tables, Update *update) {
    for (int at = 0; at < tables; at++) {
        Size width = 0;
        Table *table = &update->tables[at];
        table->first = memory_of_rows(arrays, a[2 + at], 1, at ? update->height : -1, &width, &table->stride);
        if (!table->first || !width || (at && width != update->width)) return 0;
        update->width = width;
        update->height = arrays->views[0].shape[0];
    }
    update->rows = memory(arrays, a[0], 'q', 0, -1);
    update->count = update->rows ? size_of(arrays, tables) : 0;
    if (!update->rows || update->count > UINT32_MAX) return 0;
    Size width = 0;
    update->value.first = memory_of_rows(arrays, a[1], 0, update->count, &width, &update->value.stride);
    if (!update->value.first || width != update->width) return 0;
    for (Size at = 0; at < update->count; at++) {
        if (update->rows[at] < 0 || update->rows[at] >= update->height) return 0;
    }
    return 1;
}

static void run_update(Update *update, const Optimizer *optimizer, uint32_t *scratch) {
    update->sum = (float *)(scratch + 2 * update->count);
    if (update->reach != EACH)
        update->order = ascending(update->count, update->rows, scratch, scratch + update->count);
    optimizer->run(update);
}

static PyObject *py_update_rows(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    Optimizer optimizer;
    Update update = {.count = 0};
    if (given < 2) return has_arguments(given, 2), NULL;
    long reach = PyLong_AsLong(a[1]);
    if (!optimizer_of(a[0], &optimizer) || (reach == -1 && PyErr_Occurred())) return NULL;
    const int first_scale = 4 + optimizer.tables;
    if (!has_arguments(given, first_scale + optimizer.scales)) return NULL;
    if (!numbers(a + first_scale, optimizer.scales, update.scales)) return NULL;
    if (reach < EACH || reach >= REACHES) return PyErr_Format(PyExc_ValueError, "no update reaches %ld", reach);
    update.reach = (int)reach;
    Arrays arrays = {.count = 0};
    int done = update_of(&arrays, a + 2, optimizer.tables, &update);
    uint32_t *scratch = done ? PyMem_RawMalloc((2 * update.count + update.width) * sizeof *scratch) : NULL;
    if (scratch) {
        const Size rows = reach >= ALL ? update.height : update.count;
        RUN(rows * update.width, run_update(&update, &optimizer, scratch));
        PyMem_RawFree(scratch);
    }
    return finish(&arrays, scratch != NULL);
}

static PyObject *py_group_ids(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 4)) return NULL;
    Arrays arrays = {.count = 0};
    int64_t *ids = memory(&arrays, a[0], 'q', 0, -1);
    Size count = ids ? size_of(&arrays, 0) : 0, different = 0;
    int64_t *ends = count && count <= UINT32_MAX ? memory(&arrays, a[1], 'q', 1, -1) : NULL;
    Size sections = ends ? size_of(&arrays, 1) - 1 : 0;
    int fits = sections > 0 && ends[0] == 0 && ends[sections] == count;
    for (Size at = 0; fits && at < sections; at++) fits = ends[at] <= ends[at + 1];
    int64_t *distinct = fits ? memory(&arrays, a[2], 'q', 1, count) : NULL;
    int64_t *back = distinct ? memory(&arrays, a[3], 'q', 1, count) : NULL;
    uint32_t *order = back ? PyMem_RawMalloc(2 * count * sizeof *order) : NULL;
    if (order) {
        RUN(count, different = group_sections(ids, sections, ends, order, order + count, distinct, back));
        PyMem_RawFree(order);
    }
    release(&arrays);
    return PyLong_FromSsize_t(different);
}

/* 64 bits of a number from Python; 0 with an exception set if it is none. */
static int bits(PyObject *value, uint64_t *out) {
    *out = PyLong_AsUnsignedLongLongMask(value);
    return *out != (uint64_t)-1 || !PyErr_Occurred();
}

static PyObject *py_philox(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    uint64_t second, key, other_key;
    if (!has_arguments(given, 6) || !bits(a[1], &second) || !bits(a[3], &key) || !bits(a[4], &other_key)) return NULL;
    Arrays arrays = {.count = 0};
    uint64_t *blocks = memory(&arrays, a[0], 'q', 0, -1), *third = NULL;
    Size count = blocks ? size_of(&arrays, 0) : 0;
    int fits = blocks && (a[2] == Py_None || (third = memory(&arrays, a[2], 'q', 0, count)) != NULL);
    uint64_t *out = fits ? memory(&arrays, a[5], 'q', 1, 4 * count) : NULL;
    int done = out && HAS_PHILOX;
    if (done) RUN(4 * count, philox(count, blocks, second, third, key, other_key, out));
    return finish(&arrays, done);
}

static PyObject *py_uniform_rows(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    uint64_t width, first, key, other_key;
    double limits[3];
    if (!has_arguments(given, 9) || !bits(a[1], &width) || !bits(a[2], &first) || !bits(a[3], &key) ||
        !bits(a[4], &other_key))
        return NULL;
    for (int at = 0; at < 3; at++) {
        limits[at] = PyFloat_AsDouble(a[5 + at]);
        if (limits[at] == -1.0 && PyErr_Occurred()) return NULL;
    }
    Arrays arrays = {.count = 0};
    uint64_t *ids = memory(&arrays, a[0], 'q', 0, -1);
    Size count = ids ? size_of(&arrays, 0) : 0;
    int fits = count && width <= (uint64_t)(PTRDIFF_MAX / count);
    float *out = fits ? memory(&arrays, a[8], 'f', 1, count * (Size)width) : NULL;
    int done = 0;
    if (out)
        RUN(count * (Size)width, done = uniform_rows(count, ids, width, first, key, other_key, limits[0], limits[1],
                                                     limits[2], out));
    return finish(&arrays, done);
}

static PyObject *py_draw_mask(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    uint64_t bound;
    if (!has_arguments(given, 4) || !bits(a[2], &bound)) return NULL;
    Arrays arrays = {.count = 0};
    uint32_t *low = memory(&arrays, a[0], 'i', 0, -1);
    Size rows = low ? size_of(&arrays, 0) : 0;
    uint32_t *high = rows && bound <= UINT32_MAX ? memory(&arrays, a[1], 'i', 0, rows) : NULL;
    uint8_t *out = high ? memory(&arrays, a[3], 'B', 1, -1) : NULL;
    Size n = out ? size_of(&arrays, 2) : 0;
    int done = out && n % rows == 0;
    if (done) RUN(n, draw_mask(rows, n / rows, low, high, (uint32_t)bound, out));
    return finish(&arrays, done);
}

static PyObject *py_row_words(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    uint64_t key, other_key;
    if (!has_arguments(given, 4) || !bits(a[1], &key) || !bits(a[2], &other_key)) return NULL;
    Arrays arrays = {.count = 0};
    const uint64_t *places = memory(&arrays, a[0], 'q', 0, -1);
    const Size rows = places ? size_of(&arrays, 0) : 0;
    uint64_t *out = rows ? memory(&arrays, a[3], 'q', 1, -1) : NULL;
    const Size n = out ? size_of(&arrays, 1) : 0;
    const int done = out && n % rows == 0;
    if (done) RUN(n, row_words(rows, n / rows, places, key, other_key, out));
    return finish(&arrays, done);
}

static PyObject *py_masked(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    float divisor;
    if (!has_arguments(given, 4) || !numbers(a + 2, 1, &divisor)) return NULL;
    Arrays arrays = {.count = 0};
    float *x = memory(&arrays, a[0], 'f', 0, -1);
    Size n = x ? size_of(&arrays, 0) : 0;
    uint8_t *mask = x ? memory(&arrays, a[1], 'B', 0, n) : NULL;
    float *out = mask ? memory(&arrays, a[3], 'f', 1, n) : NULL;
    if (out) RUN(n, masked(n, x, mask, divisor, out));
    return finish(&arrays, out != NULL);
}

/* The hash table of the argument `a` of a call, which has `size_of(arrays, arrays->count - 1)` entries, a power of two;
   sets `*shift`. */
static int32_t *hash_table(Arrays *arrays, PyObject *a, int written, int *shift) {
    int32_t *entries = memory(arrays, a, 'i', written, -1);
    Size size = entries ? size_of(arrays, arrays->count - 1) : 0;
    if (size < 2 || size & (size - 1)) return NULL;
    for (*shift = 64; (Size)1 << (64 - *shift) < size; --*shift) continue;
    return entries;
}

/* Takes the memory of an array of float32 that is written, and one of the same dims; false for others. */
static int take_like(PyObject *value, PyObject *part, Py_buffer *from, Py_buffer *to) {
    if (PyObject_GetBuffer(value, from, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) return PyErr_Clear(), 0;
    if (PyObject_GetBuffer(part, to, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE)) {
        PyErr_Clear();
        PyBuffer_Release(from);
        return 0;
    }
    const int fits = is_kind(from->format, 'f') && is_kind(to->format, 'f') && from->ndim == to->ndim &&
                     (!from->ndim || !memcmp(from->shape, to->shape, (size_t)from->ndim * sizeof(Py_ssize_t)));
    if (!fits) {
        PyBuffer_Release(to);
        PyBuffer_Release(from);
    }
    return fits;
}

/* copy_each(values, parts): the values are copied to the parts, two sequences of arrays. */
static PyObject *py_copy_each(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 2)) return NULL;
    if (!PyTuple_Check(a[0]) || !PyTuple_Check(a[1]) || PyTuple_GET_SIZE(a[0]) != PyTuple_GET_SIZE(a[1])) Py_RETURN_FALSE;
    const Size count = PyTuple_GET_SIZE(a[0]);
    Py_buffer *views = PyMem_Malloc((size_t)(2 * count + 1) * sizeof *views);
    Size taken = 0;
    while (views && taken < count &&
           take_like(PyTuple_GET_ITEM(a[0], taken), PyTuple_GET_ITEM(a[1], taken), &views[2 * taken], &views[2 * taken + 1])) {
        taken++;
    }
    const int done = views && taken == count;
    for (Size at = 0; at < taken; at++) {
        if (done) memcpy(views[2 * at + 1].buf, views[2 * at].buf, (size_t)views[2 * at].len);
        PyBuffer_Release(&views[2 * at]);
        PyBuffer_Release(&views[2 * at + 1]);
    }
    PyMem_Free(views);
    return PyBool_FromLong(done);
}

static PyObject *py_find_ids(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 4)) return NULL;
    Arrays arrays = {.count = 0};
    int shift = 0;
    int64_t *wanted = memory(&arrays, a[0], 'q', 0, -1);
    Size count = wanted ? size_of(&arrays, 0) : 0;
    int64_t *ids = wanted ? memory(&arrays, a[1], 'q', 0, -1) : NULL;
    int32_t *entries = ids ? hash_table(&arrays, a[2], 0, &shift) : NULL;
    int64_t *out = entries ? memory(&arrays, a[3], 'q', 1, count) : NULL;
    if (out) RUN(count, find_ids(count, wanted, ids, entries, shift, out));
    return finish(&arrays, out != NULL);
}

/* The ids that are wanted (argument 0), those of a table (1), and its hash table of them (2), whose search a place in
   the fourth array follows. */
typedef struct {
    Size count;
    int64_t *wanted, *ids, *places;
    int32_t *entries;
    int shift;
} Search;

static int search_of(Arrays *arrays, PyObject *const *a, Search *search) {
    search->wanted = memory(arrays, a[0], 'q', 0, -1);
    search->count = search->wanted ? size_of(arrays, 0) : 0;
    search->ids = search->wanted ? memory(arrays, a[1], 'q', 0, -1) : NULL;
    search->entries = search->ids ? hash_table(arrays, a[2], 0, &search->shift) : NULL;
    search->places = search->entries ? memory(arrays, a[3], 'q', 1, search->count) : NULL;
    return search->places != NULL;
}

/* Work on a table that is one item of a list, so that several of them are done without the interpreter's lock. */
typedef struct {
    Arrays arrays;
    Search search;
    Table rows;       /* of a lookup: the rows of the table, how many there are, and what is looked up */
    Size held, width;
    float *out;
    Update update;    /* of an update: what changes the rows that the search finds */
    Optimizer optimizer;
    uint32_t *scratch, *seen, number;
    int fits;
    Size missing, different; /* the results: -1 missing ids where the item does not fit */
} Item;

static int lookup_of(Item *item, PyObject *const *a) {
    Size all = 0;
    if (!search_of(&item->arrays, a, &item->search)) return 0;
    item->rows.first = memory_of_rows(&item->arrays, a[4], 0, -1, &all, &item->rows.stride);
    if (!item->rows.first) return 0;
    item->held = item->arrays.views[4].shape[0];
    item->out = memory(&item->arrays, a[5], 'f', 1, -1);
    const Size count = item->search.count, size = item->out && count ? size_of(&item->arrays, 5) : 0;
    item->width = count ? size / count : 0;
    return item->width && item->width * count == size && item->width <= all;
}

/* Takes the tables from the argument 2 of the item on, which follow the optimizer and the reach; then, from `scales` on,
   the numbers; then the ids of the gradient and its values; then the ids of the table, its hash table, the updates that
   saw its rows, the number of this update, and room for the places of the ids. */
static int held_update_of(Item *item, PyObject *const *a, Py_ssize_t given) {
    Update *update = &item->update;
    const int tables = item->optimizer.tables;
    uint64_t number;
    if (!has_arguments(given, 9 + tables + item->optimizer.scales)) return 0;
    PyObject *const *rest = a + 2 + tables + item->optimizer.scales;
    if (!numbers(a + 2 + tables, item->optimizer.scales, update->scales) || !bits(rest[5], &number)) return 0;
    item->number = (uint32_t)number;
    for (int at = 0; at < tables; at++) {
        Size width = 0;
        Table *table = &update->tables[at];
        table->first = memory_of_rows(&item->arrays, a[2 + at], 1, at ? update->height : -1, &width, &table->stride);
        if (!table->first || !width || (at && width != update->width)) return 0;
        update->width = width;
        update->height = item->arrays.views[0].shape[0];
    }
    Search *search = &item->search;
    int at = item->arrays.count;
    search->wanted = memory(&item->arrays, rest[0], 'q', 0, -1);
    update->count = search->count = search->wanted ? size_of(&item->arrays, at) : 0;
    if (!update->count || update->count > UINT32_MAX) return 0;
    Size width = 0;
    update->value.first = memory_of_rows(&item->arrays, rest[1], 0, update->count, &width, &update->value.stride);
    if (!update->value.first || width != update->width) return 0;
    search->ids = memory(&item->arrays, rest[2], 'q', 0, -1);
    search->entries = search->ids ? hash_table(&item->arrays, rest[3], 0, &search->shift) : NULL;
    at = item->arrays.count;
    item->seen = search->entries ? memory(&item->arrays, rest[4], 'I', 1, -1) : NULL;
    if (!item->seen || size_of(&item->arrays, at) < update->height) return 0;
    search->places = memory(&item->arrays, rest[6], 'q', 1, update->count);
    if (!search->places) return 0;
    item->scratch = PyMem_RawMalloc(2 * update->count * sizeof *item->scratch);
    return item->scratch != NULL;
}

/* A part of the work on an item: the ids of a lookup from `start` up to `stop`, or those of an update, in ascending
   order. */
typedef struct {
    Item *item;
    Size start, stop, missing;
    float *sum;
} Piece;

static void run_lookup(Piece *piece) {
    const Item *item = piece->item;
    const Search *of = &item->search;
    piece->missing = look_up_rows(piece->stop - piece->start, item->width, of->wanted + piece->start, of->ids,
                                  of->entries, of->shift, item->rows, item->held, of->places + piece->start,
                                  item->out + piece->start * item->width);
}

/* Finds the rows of an update in the order of their ids. */
static void find_rows(Piece *piece) {
    Item *item = piece->item;
    Update *update = &item->update;
    const Search *of = &item->search;
    uint32_t *order = item->scratch, *spare = order + update->count;
    const uint32_t *sorted = ascending(update->count, of->wanted, order, spare);
    piece->missing = find_in_order(update->count, of->wanted, sorted, of->ids, of->entries, of->shift, update->height,
                                   item->seen, item->number, of->places, &item->different);
    if (piece->missing) {
        Size found = 0;
        for (Size at = 0; at < update->count; at++) {
            if (of->places[sorted[at]] >= 0) order[found++] = sorted[at];
        }
        sorted = order;
        update->count = found;
    }
    update->order = sorted;
    update->rows = of->places;
}

static void run_held_update(Piece *piece) {
    Update update = piece->item->update;
    update.order += piece->start;
    update.count = piece->stop - piece->start;
    update.sum = piece->sum;
    piece->item->optimizer.run(&update);
}

/* Pieces of work that threads take one after the other. */
typedef struct {
    Piece *pieces;
    Size count, next;
    void (*run)(Piece *);
    PyThread_type_lock lock; /* NULL where there is one thread */
} Pieces;

/* A further thread, which releases `over` at its end. */
typedef struct {
    Pieces *pieces;
    PyThread_type_lock over;
} Hand;

static void work_off(Pieces *pieces) {
    for (;;) {
        if (pieces->lock) PyThread_acquire_lock(pieces->lock, WAIT_LOCK);
        const Size at = pieces->next++;
        if (pieces->lock) PyThread_release_lock(pieces->lock);
        if (at >= pieces->count) return;
        pieces->run(&pieces->pieces[at]);
    }
}

static void lend_hand(void *given) {
    Hand *hand = given;
    work_off(hand->pieces);
    PyThread_release_lock(hand->over);
}

#define MOST_HANDS 63

/* Runs all pieces on so many threads, or on as many as the system gives. */
static void run_pieces(Piece *pieces, Size count, void (*run)(Piece *), Size threads) {
    Pieces all = {pieces, count, 0, run, NULL};
    Hand hands[MOST_HANDS];
    Size others = 0, wanted = (threads < count ? threads : count) - 1;
    if (wanted > MOST_HANDS) wanted = MOST_HANDS;
    if (wanted > 0) all.lock = PyThread_allocate_lock();
    for (; all.lock && others < wanted; others++) {
        Hand *hand = &hands[others];
        *hand = (Hand){&all, PyThread_allocate_lock()};
        if (!hand->over) break;
        PyThread_acquire_lock(hand->over, WAIT_LOCK);
        if (PyThread_start_new_thread(lend_hand, hand) == PYTHREAD_INVALID_THREAD_ID) {
            PyThread_release_lock(hand->over);
            PyThread_free_lock(hand->over);
            break;
        }
    }
    work_off(&all);
    for (Size at = 0; at < others; at++) {
        PyThread_acquire_lock(hands[at].over, WAIT_LOCK);
        PyThread_release_lock(hands[at].over);
        PyThread_free_lock(hands[at].over);
    }
    if (all.lock) PyThread_free_lock(all.lock);
}

#define AT_ONCE 4096 /* the ids of a piece, about */

static Size pieces_of(Size count) { return count / AT_ONCE + 1; }

/* Divides the `count` ids of an item into pieces, all occurrences of an id of an update in the same one. Gives their
   number. */
static Size divide(Item *item, Size count, int updates, Piece *pieces, float *sums) {
    const Size number = pieces_of(count);
    Size made = 0, start = 0;
    for (Size at = 1; at <= number && start < count; at++) {
        Size stop = at == number ? count : count * at / number;
        const uint32_t *order = item->update.order;
        const int64_t *rows = item->update.rows;
        while (updates && stop > start && stop < count && rows[order[stop]] == rows[order[stop - 1]]) stop++;
        if (stop <= start) continue;
        pieces[made] = (Piece){item, start, stop, 0, sums + made * item->update.width};
        start = stop;
        made++;
    }
    return made;
}

/* Looks up or updates the rows of the items; false without memory. */
static int run_items(Item *items, Size count, int lookups, Size threads) {
    Size most = 0, widest = 0, made = 0, fitting = 0;
    for (Size at = 0; at < count; at++) {
        if (!items[at].fits) continue;
        most += pieces_of(items[at].search.count);
        if (items[at].update.width > widest) widest = items[at].update.width;
    }
    Piece *pieces = PyMem_RawMalloc((most ? most : 1) * sizeof *pieces);
    float *sums = PyMem_RawMalloc((most * widest + 1) * sizeof *sums);
    if (pieces && sums) {
        if (!lookups) {
            for (Size at = 0; at < count; at++) {
                if (items[at].fits) pieces[fitting++] = (Piece){&items[at], 0, items[at].search.count, 0, NULL};
            }
            run_pieces(pieces, fitting, find_rows, threads);
            for (Size at = 0; at < fitting; at++) pieces[at].item->missing = pieces[at].missing;
        }
        for (Size at = 0; at < count; at++) {
            Item *item = &items[at];
            const Size ids = lookups ? item->search.count : item->update.count;
            if (item->fits) made += divide(item, ids, !lookups, pieces + made, sums + made * widest);
        }
        run_pieces(pieces, made, lookups ? run_lookup : run_held_update, threads);
        for (Size at = 0; lookups && at < count; at++) {
            if (items[at].fits) items[at].missing = 0;
        }
        for (Size at = 0; lookups && at < made; at++) pieces[at].item->missing += pieces[at].missing;
    }
    PyMem_RawFree(sums);
    PyMem_RawFree(pieces);
    return pieces && sums;
}

/* The results of a list of items, whose work is done by so many threads: of each how many ids have no row, -1 where it
   does not fit, and the different ids. */
static PyObject *items_of(PyObject *list, int lookups, PyObject *threads_given) {
    if (!PyList_Check(list)) return PyErr_Format(PyExc_TypeError, "the items of tables are a list");
    const Size threads = PyLong_AsSsize_t(threads_given);
    if (threads == -1 && PyErr_Occurred()) return NULL;
    const Size count = PyList_GET_SIZE(list);
    Item *items = PyMem_Calloc(count ? count : 1, sizeof *items);
    if (!items) return PyErr_NoMemory();
    Size taken = 0, size = 0;
    for (; taken < count && !PyErr_Occurred(); taken++) {
        Item *item = &items[taken];
        PyObject *one = PyList_GET_ITEM(list, taken);
        item->missing = -1;
        if (!PyTuple_Check(one)) {
            PyErr_SetString(PyExc_TypeError, "an item of tables is a tuple");
            continue;
        }
        PyObject *const *a = &PyTuple_GET_ITEM(one, 0);
        const Py_ssize_t given = PyTuple_GET_SIZE(one);
        if (lookups) {
            item->fits = has_arguments(given, 6) && lookup_of(item, a);
            size += item->search.count * item->width;
        } else if (has_arguments(given < 2 ? given : 2, 2) && optimizer_of(a[0], &item->optimizer)) {
            const long reach = PyLong_AsLong(a[1]);
            if (reach == -1 && PyErr_Occurred()) continue;
            item->update.reach = (int)reach;
            item->fits = reach >= EACH && reach < ALL && held_update_of(item, a, given);
            size += item->update.count * item->update.width;
        }
    }
    PyObject *result = PyErr_Occurred() ? NULL : PyList_New(count);
    int done = 1;
    if (result) RUN(size, done = run_items(items, count, lookups, size < MANY ? 1 : threads));
    if (!done) {
        Py_CLEAR(result);
        PyErr_NoMemory();
    }
    for (Size at = 0; at < taken; at++) {
        release(&items[at].arrays);
        PyMem_RawFree(items[at].scratch);
        PyObject *pair = result ? Py_BuildValue("nn", items[at].missing, items[at].different) : NULL;
        if (pair) PyList_SET_ITEM(result, at, pair);
        else Py_CLEAR(result);
    }
    PyMem_Free(items);
    return result;
}

static PyObject *py_look_up_tables(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    return has_arguments(given, 2) ? items_of(a[0], 1, a[1]) : NULL;
}

static PyObject *py_update_tables(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    return has_arguments(given, 2) ? items_of(a[0], 0, a[1]) : NULL;
}

static PyObject *py_enter_rows(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    uint64_t update;
    if (!has_arguments(given, 6) || !bits(a[5], &update)) return NULL;
    Arrays arrays = {.count = 0};
    Search of;
    Size missing = -1;
    uint32_t *seen = search_of(&arrays, a, &of) ? memory(&arrays, a[4], 'I', 1, -1) : NULL;
    if (seen)
        RUN(of.count, missing = enter_rows(of.count, of.wanted, of.ids, of.entries, of.shift, seen, size_of(&arrays, 4),
                                           (uint32_t)update, of.places));
    release(&arrays);
    return PyLong_FromSsize_t(missing);
}

/* missing_ids(wanted, ids, entries, height, missing): of a table with ids below `height`, or with any if that is -1. */
static PyObject *py_missing_ids(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    uint64_t height;
    if (!has_arguments(given, 5) || !bits(a[3], &height)) return NULL;
    Arrays arrays = {.count = 0};
    Search of;
    Size missing = -1;
    PyObject *const search[4] = {a[0], a[1], a[2], a[4]};
    const int fits = search_of(&arrays, search, &of) && of.count && of.count <= UINT32_MAX;
    uint32_t *order = fits ? PyMem_RawMalloc(2 * of.count * sizeof *order) : NULL;
    if (order) {
        const uint32_t *sorted = ascending(of.count, of.wanted, order, order + of.count);
        const int64_t least = of.wanted[sorted[0]], most = of.wanted[sorted[of.count - 1]];
        if (height == UINT64_MAX || (least >= 0 && (uint64_t)most < height))
            RUN(of.count, missing = missing_ids(of.count, of.wanted, sorted, of.ids, of.entries, of.shift, of.places));
        PyMem_RawFree(order);
    }
    release(&arrays);
    return PyLong_FromSsize_t(missing);
}

static PyObject *py_enter_ids(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 4)) return NULL;
    uint64_t start, stop;
    if (!bits(a[2], &start) || !bits(a[3], &stop)) return NULL;
    Arrays arrays = {.count = 0};
    int shift = 0;
    int64_t *ids = memory(&arrays, a[0], 'q', 0, -1);
    int32_t *entries = ids ? hash_table(&arrays, a[1], 1, &shift) : NULL;
    int done = entries && start <= stop && stop <= (uint64_t)size_of(&arrays, 0) && stop <= INT32_MAX &&
               stop < (uint64_t)size_of(&arrays, 1);
    if (done) RUN((Size)(stop - start), enter_ids((Size)start, (Size)stop, ids, entries, shift));
    return finish(&arrays, done);
}

#ifdef __linux__
/* Rows of a table in a file, of `row` bytes each, of which the first `size` are moved: those before `front` lie in
   `memory`, too, and all others are read and written in the file. */
typedef struct {
    int file;
    Size count, row, size;
    int64_t front;
    const int64_t *places;
    char *memory, *rows;
} FileRows;

static int write_file_rows(const FileRows *of) {
    for (Size at = 0; at < of->count; at++) {
        const int64_t place = of->places[at];
        if (at + AHEAD < of->count && of->places[at + AHEAD] < of->front)
            PREFETCH(of->memory + of->places[at + AHEAD] * of->row);
        if (place < of->front) memcpy(of->memory + place * of->row, of->rows + at * of->size, of->size);
        else if (pwrite(of->file, of->rows + at * of->size, of->size, place * of->row) != of->size) return 0;
    }
    return 1;
}

/* Of the rows that the system does not have in memory it is told first, so that it reads them at the same time; `late`
   has room for all. */
static int read_file_rows(const FileRows *of, Size *late) {
    Size missing = 0;
    for (Size at = 0; at < of->count; at++) {
        const int64_t place = of->places[at];
        char *out = of->rows + at * of->size;
        if (at + AHEAD < of->count && of->places[at + AHEAD] < of->front)
            PREFETCH(of->memory + of->places[at + AHEAD] * of->row);
        if (place < of->front) {
            memcpy(out, of->memory + place * of->row, of->size);
            continue;
        }
#ifdef RWF_NOWAIT
        const struct iovec here = {out, of->size};
        if (preadv2(of->file, &here, 1, place * of->row, RWF_NOWAIT) == of->size) continue;
#endif
        posix_fadvise(of->file, place * of->row, of->size, POSIX_FADV_WILLNEED);
        late[missing++] = at;
    }
    for (Size at = 0; at < missing; at++) {
        char *out = of->rows + late[at] * of->size;
        if (pread(of->file, out, of->size, of->places[late[at]] * of->row) != of->size) return 0;
    }
    return 1;
}
#endif

static PyObject *py_move_rows(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 7)) return NULL;
    int done = 0;
#ifdef __linux__
    FileRows of = {.file = (int)PyLong_AsLong(a[0]), .row = PyLong_AsSsize_t(a[2]), .front = PyLong_AsLongLong(a[3])};
    const int writes = PyObject_IsTrue(a[6]);
    if (PyErr_Occurred()) return NULL;
    Arrays arrays = {.count = 0};
    of.places = memory(&arrays, a[1], 'q', 0, -1);
    of.count = of.places ? size_of(&arrays, 0) : 0;
    of.memory = of.count ? memory(&arrays, a[4], 'B', writes, -1) : NULL;
    int fits = of.memory && of.row > 0 && of.front >= 0 && of.front <= size_of(&arrays, 1) / of.row;
    of.rows = fits ? memory(&arrays, a[5], 'B', !writes, -1) : NULL;
    of.size = of.rows ? size_of(&arrays, 2) / of.count : 0;
    fits = of.size > 0 && of.size <= of.row && of.size * of.count == size_of(&arrays, 2);
    for (Size at = 0; fits && at < of.count; at++) fits = of.places[at] >= 0 && of.places[at] <= PTRDIFF_MAX / of.row;
    Size *late = fits ? PyMem_RawMalloc(of.count * sizeof *late) : NULL;
    if (late) {
        Py_BEGIN_ALLOW_THREADS
        done = writes ? write_file_rows(&of) : read_file_rows(&of, late);
        Py_END_ALLOW_THREADS
        PyMem_RawFree(late);
    }
    release(&arrays);
#endif
    return PyBool_FromLong(done);
}

/* Messages of machines, as pstranspile.cluster.net.wire has them in a frame.

What is not of the common kinds (numbers, texts, arrays, rows of tables), or not as it must be, is left to Python, which
says what is wrong: the functions then return None. */

#define ALIGNED 16
#define MOST_DIMS 16
#define MOST_NAME 65536

enum { NOTHING, FALSE_VALUE, TRUE_VALUE, INTEGER, REAL, TEXT, ARRAY, RAGGED, ROWS };

static const char ELEMENTS[] = "?bBhiqefd"; /* the formats of element types by their numbers */
static const int ELEMENT_SIZES[] = {1, 1, 1, 2, 4, 8, 2, 4, 8};

static int element_of(const Py_buffer *view) {
    const char *format = view->format;
    if (!format || !format[0] || format[1]) return -1;
    char kind = format[0];
    if (kind == 'l') kind = sizeof(long) == 8 ? 'q' : 'i';
    const char *found = strchr(ELEMENTS, kind);
    return found ? (int)(found - ELEMENTS) : -1;
}

static char *put_bytes(char *at, const void *from, size_t size) {
    memcpy(at, from, size);
    return at + size;
}

/* The bytes of an array that begins at the offset `start` of a frame, with the `before` bytes of its mark. */
static Size size_of_array(const Py_buffer *view, Size start, Size before) {
    const Size head = before + 8 + 8 * (Size)view->ndim, padding = -(start + head) & (ALIGNED - 1);
    return head + padding + view->len;
}

static char *put_array(char *at, const Py_buffer *view, Size start, Size before) {
    const Size padding = -(start + before + 8 + 8 * (Size)view->ndim) & (ALIGNED - 1);
    const unsigned char head[8] = {(unsigned char)element_of(view), (unsigned char)view->ndim, (unsigned char)padding};
    at = put_bytes(at, head, sizeof head);
    for (int dim = 0; dim < view->ndim; dim++) {
        const int64_t length = view->shape[dim];
        at = put_bytes(at, &length, sizeof length);
    }
    memset(at, 0, (size_t)padding);
    return put_bytes(at + padding, view->buf, (size_t)view->len);
}

static int is_little_endian(void) {
    const uint16_t one = 1;
    return *(const unsigned char *)&one;
}

/* A message as it is packed: its numbers, its name, and the arrays of its payload. */
typedef struct {
    unsigned char kind, mark;
    uint32_t source, target, length;
    int32_t trainer, slot;
    int64_t step, number;
    uint64_t sequence;
    const char *name, *text;
    Size text_length, size;
    int first, arrays;
} Packed;

static int small_number(PyObject *numbers, PyObject *key, uint32_t *out) {
    PyObject *found = PyDict_GetItemWithError(numbers, key);
    const unsigned long value = found ? PyLong_AsUnsignedLong(found) : ULONG_MAX;
    *out = (uint32_t)value;
    return found && value <= UINT32_MAX;
}

static int is_int32(PyObject *value, int32_t *out) {
    const long long number = PyLong_AsLongLong(value);
    *out = (int32_t)number;
    return number == *out && !(number == -1 && PyErr_Occurred());
}

static int take_view(PyObject *value, PyObject *ndarray, Py_buffer *view) {
    if ((PyObject *)Py_TYPE(value) != ndarray) return 0;
    if (PyObject_GetBuffer(value, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) return 0;
    if (element_of(view) >= 0 && view->ndim <= MOST_DIMS) return 1;
    PyBuffer_Release(view);
    return 0;
}

/* Reads a message, whose bytes begin at the offset `start` of the frame; false if Python must pack it. */
static int read_packed(PyObject *message, PyObject *const *a, Packed *out, Py_buffer *views, int *count, Size start) {
    uint32_t kind;
    if (!PyTuple_Check(message) || PyTuple_GET_SIZE(message) != 9) return 0;
    PyObject **of = &PyTuple_GET_ITEM(message, 0), *payload = of[7];
    if (!small_number(a[2], of[0], &kind) || kind > 255 || !small_number(a[1], of[1], &out->source) ||
        !small_number(a[1], of[2], &out->target) || !is_int32(of[3], &out->trainer) || !is_int32(of[8], &out->slot))
        return 0;
    out->kind = (unsigned char)kind;
    out->step = PyLong_AsLongLong(of[4]);
    if (out->step == -1 && PyErr_Occurred()) return 0;
    out->sequence = PyLong_AsUnsignedLongLong(of[5]);
    if (out->sequence == (uint64_t)-1 && PyErr_Occurred()) return 0;
    Size length;
    out->name = PyUnicode_Check(of[6]) ? PyUnicode_AsUTF8AndSize(of[6], &length) : NULL;
    if (!out->name || length > MOST_NAME) return 0;
    out->length = (uint32_t)length;
    out->first = *count;
    out->arrays = 0;
    start += 40 + length;
    out->size = 41 + length;
    if (payload == Py_None) {
        out->mark = NOTHING;
    } else if (payload == Py_True || payload == Py_False) {
        out->mark = payload == Py_True ? TRUE_VALUE : FALSE_VALUE;
    } else if (PyLong_CheckExact(payload)) {
        out->mark = INTEGER;
        out->number = PyLong_AsLongLong(payload);
        if (out->number == -1 && PyErr_Occurred()) return 0;
        out->size += 8;
    } else if (PyUnicode_CheckExact(payload)) {
        out->mark = TEXT;
        out->text = PyUnicode_AsUTF8AndSize(payload, &out->text_length);
        if (!out->text || out->text_length > MOST_NAME) return 0;
        out->size += 4 + out->text_length;
    } else if ((PyObject *)Py_TYPE(payload) == a[4]) {
        out->mark = ARRAY;
        if (!take_view(payload, a[4], &views[*count])) return 0;
        ++*count;
        out->arrays = 1;
        out->size += size_of_array(&views[out->first], start, 1) - 1;
    } else if ((PyObject *)Py_TYPE(payload) == a[5] && PyTuple_GET_SIZE(payload) == 3) {
        out->mark = ROWS;
        out->number = PyLong_AsLongLong(PyTuple_GET_ITEM(payload, 2));
        if (out->number == -1 && PyErr_Occurred()) return 0;
        for (int at = 0; at < 2; at++) {
            if (!take_view(PyTuple_GET_ITEM(payload, at), a[4], &views[*count])) return 0;
            ++*count;
        }
        out->arrays = 2;
        const Size rows = size_of_array(&views[out->first], start, 9);
        out->size += rows - 1 + size_of_array(&views[out->first + 1], start + rows, 0);
    } else {
        return 0;
    }
    return 1;
}

static char *put_message(char *at, const Packed *of, const Py_buffer *views, Size start) {
    const unsigned char head[4] = {of->kind};
    at = put_bytes(at, head, 4);
    at = put_bytes(at, &of->source, 4);
    at = put_bytes(at, &of->target, 4);
    at = put_bytes(at, &of->trainer, 4);
    at = put_bytes(at, &of->slot, 4);
    at = put_bytes(at, &of->step, 8);
    at = put_bytes(at, &of->sequence, 8);
    at = put_bytes(at, &of->length, 4);
    at = put_bytes(at, of->name, of->length);
    start += 40 + (Size)of->length;
    *at++ = (char)of->mark;
    if (of->mark == INTEGER || of->mark == ROWS) at = put_bytes(at, &of->number, 8);
    if (of->mark == TEXT) {
        const uint32_t length = (uint32_t)of->text_length;
        at = put_bytes(at, &length, 4);
        at = put_bytes(at, of->text, length);
    }
    if (of->arrays) {
        const Size before = of->mark == ROWS ? 9 : 1;
        at = put_array(at, &views[of->first], start, before);
        if (of->arrays == 2)
            at = put_array(at, &views[of->first + 1], start + size_of_array(&views[of->first], start, before), 0);
    }
    return at;
}

/* pack_messages(messages, machines, kinds, start, ndarray, rows): the body of a frame, which begins at the offset
   `start`; None if Python must make it. */
static PyObject *py_pack_messages(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 6)) return NULL;
    Size begin = PyLong_AsSsize_t(a[3]);
    if (begin == -1 && PyErr_Occurred()) return NULL;
    if (!PyList_Check(a[0]) || !PyDict_Check(a[1]) || !PyDict_Check(a[2]) || !is_little_endian()) Py_RETURN_NONE;
    const Size count = PyList_GET_SIZE(a[0]);
    Packed *packed = PyMem_Malloc((size_t)(count + 1) * sizeof *packed);
    Py_buffer *views = PyMem_Malloc((size_t)(2 * count + 1) * sizeof *views);
    PyObject *body = NULL;
    int taken = 0, fits = packed && views;
    Size at = begin + 4;
    for (Size each = 0; fits && each < count; each++) {
        fits = read_packed(PyList_GET_ITEM(a[0], each), a, &packed[each], views, &taken, at);
        at += packed[each].size;
    }
    if (fits) body = PyBytes_FromStringAndSize(NULL, at - begin);
    if (body) {
        const uint32_t number = (uint32_t)count;
        char *to = put_bytes(PyBytes_AS_STRING(body), &number, 4);
        for (Size each = 0, place = begin + 4; each < count; place += packed[each++].size)
            to = put_message(to, &packed[each], views, place);
    }
    while (taken) PyBuffer_Release(&views[--taken]);
    PyMem_Free(views);
    PyMem_Free(packed);
    if (body) return body;
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* The frame that is read, and what objects are made of: dtypes by number, the view of the frame, the class of arrays,
   of rows and of messages. */
typedef struct {
    const char *data;
    Size at, size;
    PyObject *view, *ndarray, *dtypes, *rows, *message;
} Frame;

/* The next `size` bytes, or NULL if there are fewer. */
static const char *next_bytes(Frame *frame, Size size) {
    if (size < 0 || size > frame->size - frame->at) return NULL;
    const char *start = frame->data + frame->at;
    frame->at += size;
    return start;
}

static uint32_t u32_at(const char *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static int64_t i64_at(const char *at) {
    int64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* An array of the frame, whose memory it shares, or NULL; sets the place of its numbers, its kind, and its dims. */
static PyObject *next_array(Frame *frame, const char **numbers_at, int *element, int *dims, int64_t *lengths) {
    const char *head = next_bytes(frame, 8);
    if (!head) return NULL;
    *element = (unsigned char)head[0];
    *dims = (unsigned char)head[1];
    const int padding = (unsigned char)head[2];
    if (*element >= (int)sizeof ELEMENT_SIZES / (int)sizeof *ELEMENT_SIZES || *dims > MOST_DIMS || padding >= ALIGNED ||
        u32_at(head + 4))
        return NULL;
    const char *given = next_bytes(frame, 8 * (Size)*dims);
    if (!given) return NULL;
    Size count = 1;
    for (int dim = 0; dim < *dims; dim++) {
        lengths[dim] = i64_at(given + 8 * dim);
        if (lengths[dim] < 0 || (lengths[dim] && count > frame->size / lengths[dim])) return NULL;
        count *= (Size)lengths[dim];
    }
    if (!next_bytes(frame, padding)) return NULL;
    const Size start = frame->at;
    *numbers_at = next_bytes(frame, count * ELEMENT_SIZES[*element]);
    if (!*numbers_at) return NULL;
    PyObject *shape = PyTuple_New(*dims), *made = NULL, *offset = NULL;
    for (int dim = 0; shape && dim < *dims; dim++) {
        PyObject *length = PyLong_FromLongLong(lengths[dim]);
        if (!length) Py_CLEAR(shape);
        else PyTuple_SET_ITEM(shape, dim, length);
    }
    PyObject *dtype = PyTuple_GET_ITEM(frame->dtypes, *element);
    if (shape && count) offset = PyLong_FromSsize_t(start);
    if (offset) made = PyObject_CallFunctionObjArgs(frame->ndarray, shape, dtype, frame->view, offset, NULL);
    else if (shape && !count) made = PyObject_CallFunctionObjArgs(frame->ndarray, shape, dtype, NULL);
    Py_XDECREF(offset);
    Py_XDECREF(shape);
    return made;
}

static PyObject *next_rows(Frame *frame) {
    const char *head = next_bytes(frame, 8), *ids, *unused;
    if (!head) return NULL;
    const int64_t height = i64_at(head);
    int element, dims, other, value_dims;
    int64_t lengths[MOST_DIMS], value_lengths[MOST_DIMS];
    PyObject *rows = next_array(frame, &ids, &element, &dims, lengths);
    PyObject *value = rows ? next_array(frame, &unused, &other, &value_dims, value_lengths) : NULL, *made = NULL;
    int fits = value && height >= 0 && dims == 1 && ELEMENTS[element] == 'q' && value_dims && value_lengths[0] >= lengths[0];
    uint64_t most = 0;
    for (int64_t at = 0; fits && at < lengths[0]; at++) {
        const uint64_t id = (uint64_t)i64_at(ids + 8 * at);
        most = id > most ? id : most;
    }
    /* a table with a row for every id has ids beyond its height: Python knows it */
    if (fits && (!lengths[0] || most < (uint64_t)height)) made = ((PyTypeObject *)frame->rows)->tp_alloc((PyTypeObject *)frame->rows, 3);
    PyObject *number = made ? PyLong_FromLongLong(height) : NULL;
    if (number) {
        PyTuple_SET_ITEM(made, 0, rows);
        PyTuple_SET_ITEM(made, 1, value);
        PyTuple_SET_ITEM(made, 2, number);
        return made;
    }
    Py_XDECREF(made);
    Py_XDECREF(rows);
    Py_XDECREF(value);
    return NULL;
}

static PyObject *next_text(Frame *frame, Size size) {
    const char *text = size > MOST_NAME ? NULL : next_bytes(frame, size);
    return text ? PyUnicode_DecodeUTF8(text, size, NULL) : NULL;
}

static PyObject *next_value(Frame *frame) {
    const char *mark = next_bytes(frame, 1), *number;
    int element, dims;
    int64_t lengths[MOST_DIMS];
    switch (mark ? (unsigned char)*mark : -1) {
    case NOTHING:
        return Py_NewRef(Py_None);
    case FALSE_VALUE:
    case TRUE_VALUE:
        return PyBool_FromLong(*mark == TRUE_VALUE);
    case INTEGER:
        number = next_bytes(frame, 8);
        return number ? PyLong_FromLongLong(i64_at(number)) : NULL;
    case TEXT:
        number = next_bytes(frame, 4);
        return number ? next_text(frame, u32_at(number)) : NULL;
    case ARRAY:
        return next_array(frame, &number, &element, &dims, lengths);
    case ROWS:
        return next_rows(frame);
    default:
        return NULL;
    }
}

/* The next message of the frame, or NULL. */
static PyObject *next_message(Frame *frame, PyObject *machines, PyObject *kinds) {
    const char *head = next_bytes(frame, 40);
    if (!head) return NULL;
    const unsigned char kind = (unsigned char)*head;
    const uint32_t source = u32_at(head + 4), target = u32_at(head + 8);
    const uint64_t sequence = (uint64_t)i64_at(head + 28);
    const Size known = PyList_GET_SIZE(machines);
    if (kind >= PyTuple_GET_SIZE(kinds) || source >= known || target >= known || !sequence) return NULL;
    PyObject *of[9] = {Py_NewRef(PyTuple_GET_ITEM(kinds, kind)), Py_NewRef(PyList_GET_ITEM(machines, source)),
                       Py_NewRef(PyList_GET_ITEM(machines, target))};
    of[3] = PyLong_FromLong((int32_t)u32_at(head + 12));
    of[4] = PyLong_FromLongLong(i64_at(head + 20));
    of[5] = PyLong_FromUnsignedLongLong(sequence);
    of[6] = next_text(frame, u32_at(head + 36));
    of[7] = of[6] ? next_value(frame) : NULL;
    of[8] = PyLong_FromLong((int32_t)u32_at(head + 16));
    int fits = of[3] && of[4] && of[5] && of[7] && of[8];
    PyObject *made = fits ? ((PyTypeObject *)frame->message)->tp_alloc((PyTypeObject *)frame->message, 9) : NULL;
    for (int at = 0; at < 9; at++) {
        if (made) PyTuple_SET_ITEM(made, at, of[at]);
        else Py_XDECREF(of[at]);
    }
    return made;
}

/* unpack_messages(view, start, machines, kinds, most, (ndarray, dtypes, rows, message)): the messages of a frame, whose
   body begins at the offset `start`; None if Python must read it. */
static PyObject *py_unpack_messages(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 6)) return NULL;
    const Size start = PyLong_AsSsize_t(a[1]), most = PyLong_AsSsize_t(a[4]);
    if (PyErr_Occurred()) return NULL;
    if (!PyList_Check(a[2]) || !PyTuple_Check(a[3]) || !PyTuple_Check(a[5]) || !is_little_endian()) Py_RETURN_NONE;
    Py_buffer view;
    if (PyObject_GetBuffer(a[0], &view, PyBUF_SIMPLE)) return NULL;
    PyObject **with = &PyTuple_GET_ITEM(a[5], 0);
    Frame frame = {view.buf, start, view.len, a[0], with[0], with[1], with[2], with[3]};
    const char *number = start <= view.len ? next_bytes(&frame, 4) : NULL;
    const Size count = number ? (Size)u32_at(number) : -1;
    PyObject *messages = count >= 0 && count <= most && count * 41 <= view.len ? PyList_New(count) : NULL;
    for (Size at = 0; messages && at < count; at++) {
        PyObject *message = next_message(&frame, a[2], a[3]);
        if (message) PyList_SET_ITEM(messages, at, message);
        else Py_CLEAR(messages);
    }
    if (messages && frame.at != frame.size) Py_CLEAR(messages);
    PyBuffer_Release(&view);
    if (messages) return messages;
    PyErr_Clear();
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"sgd", (PyCFunction)(void (*)(void))py_sgd, METH_FASTCALL, NULL},
    {"momentum", (PyCFunction)(void (*)(void))py_momentum, METH_FASTCALL, NULL},
    {"adam", (PyCFunction)(void (*)(void))py_adam, METH_FASTCALL, NULL},
    {"adagrad", (PyCFunction)(void (*)(void))py_adagrad, METH_FASTCALL, NULL},
    {"tanh_grad", (PyCFunction)(void (*)(void))py_tanh_grad, METH_FASTCALL, NULL},
    {"sigmoid_grad", (PyCFunction)(void (*)(void))py_sigmoid_grad, METH_FASTCALL, NULL},
    {"relu_grad", (PyCFunction)(void (*)(void))py_relu_grad, METH_FASTCALL, NULL},
    {"below_largest", (PyCFunction)(void (*)(void))py_below_largest, METH_FASTCALL, NULL},
    {"softmax", (PyCFunction)(void (*)(void))py_softmax, METH_FASTCALL, NULL},
    {"negative_within", (PyCFunction)(void (*)(void))py_negative_within, METH_FASTCALL, NULL},
    {"sum_all", (PyCFunction)(void (*)(void))py_sum_all, METH_FASTCALL, NULL},
    {"erf", (PyCFunction)(void (*)(void))py_erf, METH_FASTCALL, NULL},
    {"largest_of_runs", (PyCFunction)(void (*)(void))py_largest_of_runs, METH_FASTCALL, NULL},
    {"sum_runs", (PyCFunction)(void (*)(void))py_sum_runs, METH_FASTCALL, NULL},
    {"unfold_runs", (PyCFunction)(void (*)(void))py_unfold_runs, METH_FASTCALL, NULL},
    {"fold_runs", (PyCFunction)(void (*)(void))py_fold_runs, METH_FASTCALL, NULL},
    {"chains_ahead", (PyCFunction)(void (*)(void))py_chains_ahead, METH_FASTCALL, NULL},
    {"chains_back", (PyCFunction)(void (*)(void))py_chains_back, METH_FASTCALL, NULL},
    {"best_path", (PyCFunction)(void (*)(void))py_best_path, METH_FASTCALL, NULL},
    {"lstm_bias_grad", (PyCFunction)(void (*)(void))py_lstm_bias_grad, METH_FASTCALL, NULL},
    {"lstm_unit", (PyCFunction)(void (*)(void))py_lstm_unit, METH_FASTCALL, NULL},
    {"lstm_unit_back", (PyCFunction)(void (*)(void))py_lstm_unit_back, METH_FASTCALL, NULL},
    {"use_numpy", (PyCFunction)(void (*)(void))py_use_numpy, METH_FASTCALL, NULL},
    {"gru", (PyCFunction)(void (*)(void))py_gru, METH_FASTCALL, NULL},
    {"gru_back", (PyCFunction)(void (*)(void))py_gru_back, METH_FASTCALL, NULL},
    {"lstm", (PyCFunction)(void (*)(void))py_lstm, METH_FASTCALL, NULL},
    {"lstm_back", (PyCFunction)(void (*)(void))py_lstm_back, METH_FASTCALL, NULL},
    {"unfold", (PyCFunction)(void (*)(void))py_unfold, METH_FASTCALL, NULL},
    {"fold", (PyCFunction)(void (*)(void))py_fold, METH_FASTCALL, NULL},
    {"scale_channels", (PyCFunction)(void (*)(void))py_scale_channels, METH_FASTCALL, NULL},
    {"squares", (PyCFunction)(void (*)(void))py_squares, METH_FASTCALL, NULL},
    {"norm_products", (PyCFunction)(void (*)(void))py_norm_products, METH_FASTCALL, NULL},
    {"norm_grad", (PyCFunction)(void (*)(void))py_norm_grad, METH_FASTCALL, NULL},
    {"sum_rows", (PyCFunction)(void (*)(void))py_sum_rows, METH_FASTCALL, NULL},
    {"shares", (PyCFunction)(void (*)(void))py_shares, METH_FASTCALL, NULL},
    {"softmax_grad", (PyCFunction)(void (*)(void))py_softmax_grad, METH_FASTCALL, NULL},
    {"pick", (PyCFunction)(void (*)(void))py_pick, METH_FASTCALL, NULL},
    {"cross_entropy", (PyCFunction)(void (*)(void))py_cross_entropy, METH_FASTCALL, NULL},
    {"cross_entropy_grad", (PyCFunction)(void (*)(void))py_cross_entropy_grad, METH_FASTCALL, NULL},
    {"put_largest", (PyCFunction)(void (*)(void))py_put_largest, METH_FASTCALL, NULL},
    {"put", (PyCFunction)(void (*)(void))py_put, METH_FASTCALL, NULL},
    {"add_rows", (PyCFunction)(void (*)(void))py_add_rows, METH_FASTCALL, NULL},
    {"take_rows", (PyCFunction)(void (*)(void))py_take_rows, METH_FASTCALL, NULL},
    {"merge_rows", (PyCFunction)(void (*)(void))py_merge_rows, METH_FASTCALL, NULL},
    {"sum_tables", (PyCFunction)(void (*)(void))py_sum_tables, METH_FASTCALL, NULL},
    {"split_rows", (PyCFunction)(void (*)(void))py_split_rows, METH_FASTCALL, NULL},
    {"update_rows", (PyCFunction)(void (*)(void))py_update_rows, METH_FASTCALL, NULL},
    {"group_ids", (PyCFunction)(void (*)(void))py_group_ids, METH_FASTCALL, NULL},
    {"philox", (PyCFunction)(void (*)(void))py_philox, METH_FASTCALL, NULL},
    {"uniform_rows", (PyCFunction)(void (*)(void))py_uniform_rows, METH_FASTCALL, NULL},
    {"draw_mask", (PyCFunction)(void (*)(void))py_draw_mask, METH_FASTCALL, NULL},
    {"row_words", (PyCFunction)(void (*)(void))py_row_words, METH_FASTCALL, NULL},
    {"masked", (PyCFunction)(void (*)(void))py_masked, METH_FASTCALL, NULL},
    {"copy_each", (PyCFunction)(void (*)(void))py_copy_each, METH_FASTCALL, NULL},
    {"find_ids", (PyCFunction)(void (*)(void))py_find_ids, METH_FASTCALL, NULL},
    {"look_up_tables", (PyCFunction)(void (*)(void))py_look_up_tables, METH_FASTCALL, NULL},
    {"update_tables", (PyCFunction)(void (*)(void))py_update_tables, METH_FASTCALL, NULL},
    {"move_rows", (PyCFunction)(void (*)(void))py_move_rows, METH_FASTCALL, NULL},
    {"missing_ids", (PyCFunction)(void (*)(void))py_missing_ids, METH_FASTCALL, NULL},
    {"enter_rows", (PyCFunction)(void (*)(void))py_enter_rows, METH_FASTCALL, NULL},
    {"enter_ids", (PyCFunction)(void (*)(void))py_enter_ids, METH_FASTCALL, NULL},
    {"pack_messages", (PyCFunction)(void (*)(void))py_pack_messages, METH_FASTCALL, NULL},
    {"unpack_messages", (PyCFunction)(void (*)(void))py_unpack_messages, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "pstranspile.runtime.arithmetic._loops",
    .m_size = 0,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__loops(void) {
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddStringConstant(made, "SOURCE", SOURCE)) Py_CLEAR(made);
    return made;
}
