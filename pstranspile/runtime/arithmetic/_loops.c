/* The module pstranspile.runtime.arithmetic._loops: the loops of _loops.h for Python.

A function returns True when it has done its work. It returns False, and changes nothing, if an argument is not a
C-contiguous array of float32 (labels and rows: int64) of the expected size, or is read-only although it is written. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_loops.h"

#define MANY 32768 /* from this many elements on, other threads may run meanwhile */

typedef struct {
    Py_buffer views[24];
    int count;
} Arrays;

static void release(Arrays *arrays) {
    while (arrays->count) PyBuffer_Release(&arrays->views[--arrays->count]);
}

/* Whether an array has elements of a kind: 'f' (float32), 'i' (int32), 'q' (int64) or 'B' (uint8). */
static int is_kind(const char *format, char kind) {
    if (!format || !format[0] || format[1]) return 0;
    if (kind == 'i') return format[0] == 'i' || (format[0] == 'l' && sizeof(long) == 4);
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

#define FLOAT32 11 /* numpy's number of the type */

/* numpy's function of a name and so many arguments for float32; it has none if `run` is NULL. */
static Function function_of(PyObject *value, const char *name, int arguments) {
    Function found = {NULL, NULL};
    const Ufunc *ufunc = (const Ufunc *)value;
    if (strcmp(Py_TYPE(value)->tp_name, "numpy.ufunc") || Py_TYPE(value)->tp_basicsize < (Py_ssize_t)sizeof(Ufunc) ||
        ufunc->arguments != arguments || ufunc->outputs != 1 || ufunc->inputs != arguments - 1 ||
        strcmp(ufunc->name, name)) {
        return found;
    }
    for (int at = 0; at < ufunc->count; at++) {
        int fits = 1;
        for (int place = 0; place < arguments; place++) fits &= ufunc->types[at * arguments + place] == FLOAT32;
        if (fits) return (Function){ufunc->functions[at], ufunc->data[at]};
    }
    return found;
}

static PyObject *py_use_numpy(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 3)) return NULL;
    numpys.exp = function_of(a[0], "exp", 2);
    numpys.tanh = function_of(a[1], "tanh", 2);
    numpys.matmul = function_of(a[2], "matmul", 3);
    if (!numpys.exp.run || !numpys.tanh.run) numpys.matmul.run = NULL; /* all of them, or none */
    return PyBool_FromLong(numpys.matmul.run != NULL);
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
    if (!has_arguments(given, 13)) return NULL;
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

/* The arguments are x, the weights of ends, going_on, starts, rows, sequences, every, what is written: of floats, and of
   bytes (ahead) or floats (back). */
static PyObject *py_chains(int back, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 9)) return NULL;
    const Size sequences = PyLong_AsSsize_t(a[5]), every = PyLong_AsSsize_t(a[6]);
    if (PyErr_Occurred()) return NULL;
    Arrays arrays = {.count = 0};
    Chains c = {.every = every};
    c.x = memory(&arrays, a[0], 'f', 0, -1);
    const Size n = c.x ? size_of(&arrays, 0) : 0, k = c.labels = width_of(&arrays, 0);
    int done = numpys.matmul.run && n > 0 && every > 0 && sequences > 0 && sequences < INT32_MAX / k;
    TAKE(c.end, memory(&arrays, a[1], 'f', 0, k));
    done = done && is_matrix(&arrays, a[2], k, k, &c.going_on);
    done = done && are_steps(&arrays, a[3], a[4], n / k, sequences, &c.steps);
    TAKE(c.out, memory(&arrays, a[7], 'f', 1, n));
    if (back) {
        TAKE(c.behind, memory(&arrays, a[8], 'f', 1, n));
    } else {
        TAKE(c.counts, memory(&arrays, a[8], 'B', 1, n / k));
    }
    TAKE(c.spare, PyMem_Malloc(2 * sequences * k * sizeof(float)));
    if (done && back) RUN(n, chains_back(&c));
    if (done && !back) RUN(n, chains_ahead(&c));
    PyMem_Free(c.spare);
    return finish(&arrays, done);
}

static PyObject *py_chains_ahead(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    return py_chains(0, a, given);
}

static PyObject *py_chains_back(PyObject *self, PyObject *const *a, Py_ssize_t given) { return py_chains(1, a, given); }

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

static PyObject *py_merge_rows(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 5)) return NULL;
    Arrays arrays = {.count = 0};
    int64_t *rows = memory(&arrays, a[0], 'q', 0, -1);
    Size count = rows ? size_of(&arrays, 0) : 0, different = 0;
    int64_t *places = count ? memory(&arrays, a[1], 'q', 0, count) : NULL;
    float *value = places ? memory(&arrays, a[2], 'f', 0, -1) : NULL;
    Size size = value ? size_of(&arrays, 2) : 0, width = size / (count ? count : 1);
    int64_t *merged = value && width * count == size ? memory(&arrays, a[3], 'q', 1, count) : NULL;
    float *sums = merged ? memory(&arrays, a[4], 'f', 1, size) : NULL;
    int done = sums != NULL;
    for (Size at = 0; done && at < count; at++) done = places[at] >= 0 && places[at] < count;
    if (done) RUN(size, different = merge_rows(count, width, rows, places, value, merged, sums));
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

/* What an update of rows of tables needs beside the tables: the rows, their values, room to sort them, and room for the
   sum of a row. */
typedef struct {
    Size count, width, height;
    int64_t *rows;
    float *sum;
    uint32_t *order, *spare;
    Table table, value;
} Update;

/* Takes a table (argument 0), and the rows (1) and the values (2) of its gradient; false if they don't fit. */
static int update_of(Arrays *arrays, PyObject *const *a, Update *update) {
    update->table.first = memory_of_rows(arrays, a[0], 1, -1, &update->width, &update->table.stride);
    if (!update->table.first || !update->width) return 0;
    update->height = arrays->views[0].shape[0];
    update->rows = memory(arrays, a[1], 'q', 0, -1);
    update->count = update->rows ? size_of(arrays, 1) : 0;
    if (!update->rows || update->count > UINT32_MAX) return 0;
    Size width = 0;
    update->value.first = memory_of_rows(arrays, a[2], 0, update->count, &width, &update->value.stride);
    if (!update->value.first || width != update->width) return 0;
    for (Size at = 0; at < update->count; at++) {
        if (update->rows[at] < 0 || update->rows[at] >= update->height) return 0;
    }
    return 1;
}

/* Takes another table of as many rows of the same width. */
static int like_table(Arrays *arrays, PyObject *value, const Update *update, Table *table) {
    Size width = 0;
    table->first = memory_of_rows(arrays, value, 1, update->height, &width, &table->stride);
    return table->first && width == update->width;
}

static int take_scratch(Update *update) {
    update->order = PyMem_RawMalloc((2 * update->count + update->width) * sizeof(uint32_t));
    if (!update->order) return 0;
    update->spare = update->order + update->count;
    update->sum = (float *)(update->spare + update->count);
    return 1;
}

static PyObject *py_adagrad_rows(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    float scales[2];
    if (!has_arguments(given, 6) || !numbers(a + 4, 2, scales)) return NULL;
    Arrays arrays = {.count = 0};
    Update of;
    Table m;
    int done = update_of(&arrays, a, &of) && like_table(&arrays, a[3], &of, &m) && take_scratch(&of);
    if (done) {
        RUN(of.count * of.width,
            adagrad_rows(of.count, of.width, of.rows, of.value, ascending(of.count, of.rows, of.order, of.spare),
                         of.sum, of.table, m, scales[0], scales[1]));
        PyMem_RawFree(of.order);
    }
    return finish(&arrays, done);
}

static PyObject *py_adam_rows(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    float scales[6];
    if (!has_arguments(given, 11) || !numbers(a + 5, 6, scales)) return NULL;
    Arrays arrays = {.count = 0};
    Update of;
    Table m, v;
    int done = update_of(&arrays, a, &of) && like_table(&arrays, a[3], &of, &m) &&
               like_table(&arrays, a[4], &of, &v) && take_scratch(&of);
    if (done) {
        RUN(of.count * of.width,
            adam_rows(of.count, of.width, of.rows, of.value, ascending(of.count, of.rows, of.order, of.spare), of.sum,
                      of.table, m, v, scales));
        PyMem_RawFree(of.order);
    }
    return finish(&arrays, done);
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

static PyMethodDef functions[] = {
    {"sgd", (PyCFunction)(void (*)(void))py_sgd, METH_FASTCALL, NULL},
    {"momentum", (PyCFunction)(void (*)(void))py_momentum, METH_FASTCALL, NULL},
    {"adam", (PyCFunction)(void (*)(void))py_adam, METH_FASTCALL, NULL},
    {"adagrad", (PyCFunction)(void (*)(void))py_adagrad, METH_FASTCALL, NULL},
    {"tanh_grad", (PyCFunction)(void (*)(void))py_tanh_grad, METH_FASTCALL, NULL},
    {"sigmoid_grad", (PyCFunction)(void (*)(void))py_sigmoid_grad, METH_FASTCALL, NULL},
    {"relu_grad", (PyCFunction)(void (*)(void))py_relu_grad, METH_FASTCALL, NULL},
    {"below_largest", (PyCFunction)(void (*)(void))py_below_largest, METH_FASTCALL, NULL},
    {"erf", (PyCFunction)(void (*)(void))py_erf, METH_FASTCALL, NULL},
    {"largest_of_runs", (PyCFunction)(void (*)(void))py_largest_of_runs, METH_FASTCALL, NULL},
    {"unfold_runs", (PyCFunction)(void (*)(void))py_unfold_runs, METH_FASTCALL, NULL},
    {"fold_runs", (PyCFunction)(void (*)(void))py_fold_runs, METH_FASTCALL, NULL},
    {"chains_ahead", (PyCFunction)(void (*)(void))py_chains_ahead, METH_FASTCALL, NULL},
    {"chains_back", (PyCFunction)(void (*)(void))py_chains_back, METH_FASTCALL, NULL},
    {"best_path", (PyCFunction)(void (*)(void))py_best_path, METH_FASTCALL, NULL},
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
    {"put", (PyCFunction)(void (*)(void))py_put, METH_FASTCALL, NULL},
    {"add_rows", (PyCFunction)(void (*)(void))py_add_rows, METH_FASTCALL, NULL},
    {"merge_rows", (PyCFunction)(void (*)(void))py_merge_rows, METH_FASTCALL, NULL},
    {"split_rows", (PyCFunction)(void (*)(void))py_split_rows, METH_FASTCALL, NULL},
    {"adagrad_rows", (PyCFunction)(void (*)(void))py_adagrad_rows, METH_FASTCALL, NULL},
    {"adam_rows", (PyCFunction)(void (*)(void))py_adam_rows, METH_FASTCALL, NULL},
    {"group_ids", (PyCFunction)(void (*)(void))py_group_ids, METH_FASTCALL, NULL},
    {"philox", (PyCFunction)(void (*)(void))py_philox, METH_FASTCALL, NULL},
    {"uniform_rows", (PyCFunction)(void (*)(void))py_uniform_rows, METH_FASTCALL, NULL},
    {"draw_mask", (PyCFunction)(void (*)(void))py_draw_mask, METH_FASTCALL, NULL},
    {"row_words", (PyCFunction)(void (*)(void))py_row_words, METH_FASTCALL, NULL},
    {"masked", (PyCFunction)(void (*)(void))py_masked, METH_FASTCALL, NULL},
    {"find_ids", (PyCFunction)(void (*)(void))py_find_ids, METH_FASTCALL, NULL},
    {"enter_ids", (PyCFunction)(void (*)(void))py_enter_ids, METH_FASTCALL, NULL},
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
