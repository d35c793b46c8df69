"""``python -m jointopt.measure.trainer SPEC.json RESULT.json``, started by torchrun."""

import sys

from jointopt.measure.trainer.device import exit_at_once
from jointopt.measure.trainer.run import main

main(*sys.argv[1:3])
exit_at_once()
