/* The module pstranspile.runtime.arithmetic._loops: the loops of _loops.h for Python.

A function returns True when it has done its work. It returns False, and changes nothing, if an argument is not a
C-contiguous array of float32 (labels and rows: int64) of the expected size, or is read-only although it is written. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_loops.h"

#define MANY 32768 /* from this many elements on, other threads may run meanwhile */

typedef struct {
    Py_buffer views[8];
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

static PyObject *py_lstm_cell(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 5)) return NULL;
    Arrays arrays = {.count = 0};
    float *c = memory(&arrays, a[0], 'f', 0, -1);
    Size n = c ? size_of(&arrays, 0) : 0;
    float *i = c ? memory(&arrays, a[1], 'f', 0, n) : NULL;
    float *f = i ? memory(&arrays, a[2], 'f', 0, n) : NULL;
    float *s = f ? memory(&arrays, a[3], 'f', 0, n) : NULL;
    float *out = s ? memory(&arrays, a[4], 'f', 1, n) : NULL;
    if (out) RUN(n, lstm_cell(n, c, i, f, s, out));
    return finish(&arrays, out != NULL);
}

/* The memory of a writable float32 array [4, rows, width] whose last dim is contiguous, or NULL. */
static float *gates_of(Arrays *arrays, PyObject *value, Size rows, Size width) {
    Py_buffer *view = &arrays->views[arrays->count];
    if (PyObject_GetBuffer(value, view, PyBUF_STRIDES | PyBUF_FORMAT | PyBUF_WRITABLE)) {
        PyErr_Clear();
        return NULL;
    }
    arrays->count++;
    int fits = is_kind(view->format, 'f') && view->ndim == 3 && view->shape[0] == 4 && view->shape[1] == rows &&
               view->shape[2] == width && (width == 1 || view->strides[2] == (Size)sizeof(float));
    return fits ? view->buf : NULL;
}

static PyObject *py_lstm_back(PyObject *self, PyObject *const *a, Py_ssize_t given) {
    if (!has_arguments(given, 10)) return NULL;
    Size start = PyLong_AsSsize_t(a[8]), count = PyLong_AsSsize_t(a[9]);
    if (PyErr_Occurred()) return NULL;
    Arrays arrays = {.count = 0};
    LstmStep step;
    step.grad = memory(&arrays, a[0], 'f', 1, -1);
    Size n = step.grad ? size_of(&arrays, 0) : 0, width = width_of(&arrays, 0), rows = n ? n / width : 0;
    int fits = n && start >= 0 && count >= 0 && count <= rows && start <= rows - count;
    float *state = fits ? memory(&arrays, a[1], 'f', 0, count * width) : NULL;
    float *cell = state ? memory(&arrays, a[2], 'f', 1, count * width) : NULL;
    step.output = cell ? memory(&arrays, a[3], 'f', 0, n) : NULL;
    step.cell = step.output ? memory(&arrays, a[4], 'f', 0, n) : NULL;
    step.inner[0] = step.cell ? memory(&arrays, a[5], 'f', 0, 3 * n) : NULL;
    step.kept = step.inner[0] ? memory(&arrays, a[6], 'f', 0, n) : NULL;
    step.gates[0] = step.kept ? gates_of(&arrays, a[7], rows, width) : NULL;
    if (step.gates[0]) {
        const Py_buffer *view = &arrays.views[arrays.count - 1];
        const Size apart = view->strides[0] / view->itemsize, stride = view->strides[1] / view->itemsize;
        for (int gate = 3; gate >= 0; gate--) step.gates[gate] = step.gates[0] + gate * apart + start * stride;
        for (int gate = 2; gate >= 0; gate--) step.inner[gate] = step.inner[0] + gate * n + start * width;
        step.grad += start * width;
        step.output += start * width;
        step.cell += start * width;
        step.kept += start * width;
        RUN(count * width, lstm_back(count, width, stride, step, state, cell));
    }
    return finish(&arrays, step.gates[0] != NULL);
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
    {"lstm_cell", (PyCFunction)(void (*)(void))py_lstm_cell, METH_FASTCALL, NULL},
    {"lstm_back", (PyCFunction)(void (*)(void))py_lstm_back, METH_FASTCALL, NULL},
    {"unfold", (PyCFunction)(void (*)(void))py_unfold, METH_FASTCALL, NULL},
    {"fold", (PyCFunction)(void (*)(void))py_fold, METH_FASTCALL, NULL},
    {"scale_channels", (PyCFunction)(void (*)(void))py_scale_channels, METH_FASTCALL, NULL},
    {"squares", (PyCFunction)(void (*)(void))py_squares, METH_FASTCALL, NULL},
    {"norm_products", (PyCFunction)(void (*)(void))py_norm_products, METH_FASTCALL, NULL},
    {"norm_grad", (PyCFunction)(void (*)(void))py_norm_grad, METH_FASTCALL, NULL},
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
