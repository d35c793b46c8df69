"""``python -m jointopt.measure.trainer SPEC.json RESULT.json``, started by torchrun."""

import sys

from jointopt.measure.trainer.device import leave
from jointopt.measure.trainer.run import main

main(*sys.argv[1:3])
leave()
