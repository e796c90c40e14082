"""The launchers of Fluid and Paddle, which start a script as processes of this host, and end them together.

`launch` starts trainers, with servers if that is asked for, `launch_ps` servers and trainers, `processes` watches what
they have started. `environment` has what launchers tell scripts. A launcher imports nothing of what scripts call, so
that it starts at once. Read `processes.py` first.
"""
