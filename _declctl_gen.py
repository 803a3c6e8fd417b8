"""The package of the modules of generations, as processes find it that handler code has started.

In the process of the controller a package in memory has this name. A process that is spawned
(`multiprocessing`, `concurrent.futures.ProcessPoolExecutor`) imports the module of each function that it is
given by its name, such as `_declctl_gen.g3.handlers.pods`, and so comes by here.
"""

import sys

from declctl.hooks.loader import SharedGenerations

__path__: list[str] = []

sys.meta_path.insert(0, SharedGenerations(__name__))
