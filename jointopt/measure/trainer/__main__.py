"""``python -m jointopt.measure.trainer SPEC.json RESULT.json``, started by torchrun."""

import os
import sys

from jointopt.measure.trainer.run import main

main(*sys.argv[1:3])
sys.stdout.flush()
sys.stderr.flush()
# Threads of gloo still hold Python objects. One that frees them while the interpreter ends is unwound by Python, and
# C++ calls that abort: "terminate called without an active exception". The results are written, nothing is left to do.
os._exit(0)
