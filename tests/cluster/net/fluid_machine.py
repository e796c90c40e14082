"""One machine of a cluster, run by Fluid 1.8.5: a script for its Python, not for this package's.

fluid_machine.py trainer FOLDER ROLE VALUES.npz FEEDS.npz LOSS OUT.npz   runs ROLE's programs, a step for each feed
fluid_machine.py server FOLDER ROLE VALUES.npz                           serves

What the start-up program has left is set to VALUES, where they name it; `<name>@ROWS` are ids of rows.
FEEDS.npz holds `<step>/<feed>`, and
`<step>/<feed>@LENS` where a feed is ragged.
"""

import os
import signal
import sys

import numpy as np
import paddle.fluid as fluid

STATUS = os.environ.get("PSTRANSPILE_STATUS", "")
"""The number of a pipe that is told of every step, if somebody wants to know."""


def program_of(folder, role, part):
    with open(os.path.join(folder, f"{role}.{part}.pb"), "rb") as file:
        return fluid.Program.parse_from_string(file.read())


def fed(feeds, step):
    found = {}
    for key in feeds.files:
        number, _, name = key.partition("/")
        if int(number) != step or name.endswith("@LENS"):
            continue
        lens = f"{key}@LENS"
        if lens in feeds.files:
            found[name] = fluid.create_lod_tensor(feeds[key], [feeds[lens].tolist()], fluid.CPUPlace())
        else:
            found[name] = feeds[key]
    return found


def started(folder, role, values):
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(program_of(folder, role, "startup"))
    given = np.load(values)
    for name in given.files:
        variable = fluid.global_scope().find_var(name)
        if variable is None:
            continue
        if f"{name}@ROWS" in given.files:
            table = variable.get_selected_rows()
            table.get_tensor().set(given[name], fluid.CPUPlace())
            table.set_rows(given[f"{name}@ROWS"].tolist())
            table.sync_index()
        elif variable.get_tensor()._is_initialized():
            variable.get_tensor().set(given[name], fluid.CPUPlace())
    return exe


def train(folder, role, values, feeds, loss, out):
    exe = started(folder, role, values)
    main, feeds = program_of(folder, role, "main"), np.load(feeds)
    steps = 1 + max(int(key.partition("/")[0]) for key in feeds.files)
    batches = [fed(feeds, step) for step in range(steps)]
    losses = []
    for step, batch in enumerate(batches):
        (value,) = exe.run(main, feed=batch, fetch_list=[loss], use_program_cache=True)
        losses.append(float(value.reshape(-1)[0]))
        if STATUS:
            os.write(int(STATUS), b'{"step": %d}\n' % (step + 1))
    exe.close()
    np.savez(out, loss=np.array(losses))


def serve(folder, role, values):
    started(folder, role, values).run(program_of(folder, role, "main"))


signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
{"trainer": train, "server": serve}[sys.argv[1]](*sys.argv[2:])
