"""Settings that every verb shares."""

import os
import platform
import subprocess
import sys


def test_what_libraries_log_of_a_failed_save_is_not_shown():
    # asyncio tells of every write that failed beside the first, but only when the collector comes by.
    program = (
        "import logging; from hayakuchi.runtime import set_up_logging; set_up_logging();"
        "[logging.getLogger(name).error('failed') for name in ('asyncio', 'absl')];"
        "logging.getLogger('hayakuchi').warning('ours')"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stderr == "hayakuchi: ours\n"


def test_freed_memory_is_kept_unless_the_user_has_settings_of_their_own():
    """Pages of a block that is freed and taken again need not be cleared again."""
    program = (
        "import resource, sys; from hayakuchi.runtime import keep_freed_memory; done = keep_freed_memory();"
        "take = lambda: len(bytearray(64 << 20));"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt;"
        "take(); before = faults(); take(); print(done, faults() - before)"
    )

    def run(**settings):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
        command = [sys.executable, "-c", program]
        said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment | settings)
        done, faults = said.stdout.split()
        return done == "True", int(faults)

    done, faults = run(MALLOC_TRIM_THRESHOLD_="131072")
    assert not done
    assert faults > 10_000
    if platform.libc_ver()[0] == "glibc":
        done, faults = run()
        assert done
        assert faults < 100
