"""Settings that every verb shares."""

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
