"""Settings of all tests.

A person's run looks for new counterexamples each time; CI says the same of the same code each time,
so that what is red there is what the change did. Neither judges by how fast the machine is.
"""

import atexit
import os
import shutil
import tempfile

from hypothesis import HealthCheck, settings

# The official client reads the system's certificates for each new client, also for a server without TLS.
# So does each process that imports aiohttp. That takes 40 ms, a thousand times. No test needs them.
os.environ["SSL_CERT_FILE"] = os.devnull

# Commands find running processes by files in this folder. The person's own processes are not for tests.
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="declctl-tests-")
os.environ.pop("DECLCTL_RUNTIME_DIR", None)  # it would come first
atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)

settings.register_profile("person", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("person"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "person")
